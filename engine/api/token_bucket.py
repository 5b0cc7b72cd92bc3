"""A rate limit with a burst after a pause, as in client-go and the kubelet."""

from __future__ import annotations


class TokenBucket:
    """Limit a rate; pure. Times are seconds of any monotonic clock."""

    def __init__(self, rate: float, burst: int) -> None:
        """Allow `rate` calls per second, more than 0, and `burst` at once, at least 1."""
        self._apart = 1 / rate
        self._ahead = (burst - 1) * self._apart
        self._due = float("-inf")

    def wait(self, now: float) -> float:
        """Return the seconds until the next call may pass, and count that call."""
        self._due = max(self._due, now - self._ahead)
        wait = max(self._due - now, 0.0)
        self._due += self._apart
        return wait

    def take(self, now: float) -> bool:
        """Return whether a call may pass now; count it only if so."""
        if max(self._due, now - self._ahead) > now:
            return False
        self.wait(now)
        return True


def api_rate(rate: int, burst: int) -> TokenBucket:
    """Apply client-go's defaults, 5 and 10, in place of 0."""
    return TokenBucket(rate or 5, burst or 10)
