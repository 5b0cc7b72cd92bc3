"""Durations as Kubernetes writes them (`10s`, `1m30s`, `1.5h`), as float seconds, and growing delays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import msgspec

from engine.api.errors import InvalidInput

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 128
_MOST_SECONDS = 2**63 / 1e9


class Duration(float):
    """Count seconds; `str()` returns the text form (`1m30s`)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parse `1h15m30.5s`; a bare `0` is allowed. Raises `InvalidInput`, also for more than 292 years."""
        wrong = InvalidInput(f"{text[:64]!r} is not a duration; write it like 10s, 1m30s or 500ms")
        if len(text) > _LONGEST:
            raise wrong
        sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
        if body == "0":
            return cls(0)
        at, seconds = 0, 0.0
        while part := _PART.match(body, at):
            at = part.end()
            seconds += float(part[1]) * _UNITS[part[2]]
        # Go keeps nanoseconds in 64 bits.
        if not at or at < len(body) or seconds >= _MOST_SECONDS:
            raise wrong
        return cls(sign * seconds)

    def __str__(self) -> str:
        nanos = round(abs(self) * 1e9)
        sign = "-" if self < 0 else ""
        if nanos == 0:
            return "0s"
        if nanos < 10**9:
            for unit, scale in (("ms", 10**6), ("µs", 10**3), ("ns", 1)):
                if nanos >= scale:
                    return f"{sign}{_trim(nanos / scale)}{unit}"
        minutes, nanos = divmod(nanos, 60 * 10**9)
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h" if hours else ""
        if hours or minutes:
            text += f"{minutes}m"
        return f"{sign}{text}{_trim(nanos / 1e9)}s"

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"


def _trim(number: float) -> str:
    return f"{number:.9f}".rstrip("0").rstrip(".")


class RetryDelays(msgspec.Struct, frozen=True):
    """Yield pauses in seconds between attempts that fail: `first`, then each `factor` times the one before,
    up to `most`.
    """

    first: float
    most: float
    factor: float = 2.0

    def after(self, failures: int) -> float:
        """Return the pause after so many failures in a row, at least one."""
        # The exponent is limited because a float does not hold the power of some thousand failures.
        return min(self.first * self.factor ** min(failures - 1, 64), self.most)

    def __iter__(self) -> Iterator[float]:
        """Yield the pause after the first failure, after the second and so on."""
        return map(self.after, count(1))
