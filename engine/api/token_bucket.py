"""A limit of so many a second, and so many at once after a pause, as client-go's and the kubelet's."""

from __future__ import annotations


class TokenBucket:
    """Pure; times are seconds of any clock that does not go back."""

    def __init__(self, rate: float, burst: int) -> None:
        """`rate` a second, more than 0; `burst` at once, at least 1."""
        self._apart = 1 / rate
        self._ahead = (burst - 1) * self._apart
        self._due = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until the next one may pass, which counts from here on."""
        self._due = max(self._due, now - self._ahead)
        wait = max(self._due - now, 0.0)
        self._due += self._apart
        return wait

    def take(self, now: float) -> bool:
        """Whether one may pass now; only then it counts."""
        if max(self._due, now - self._ahead) > now:
            return False
        self.wait(now)
        return True


def api_rate(rate: int, burst: int) -> TokenBucket:
    """With client-go's defaults, 5 and 10, in the place of 0."""
    return TokenBucket(rate or 5, burst or 10)
