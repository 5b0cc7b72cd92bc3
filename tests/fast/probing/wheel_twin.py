"""State the rule of the timer wheel: timers by number, on a heap."""

from __future__ import annotations

import heapq


class TimerWheel:
    """Keep timers in ticks, which are whole numbers. A timer armed for the past or the present expires at the
    next tick.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self._expires: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def arm(self, timer: int, expires: int) -> None:
        """Arm a timer, or move it."""
        self._expires[timer] = max(expires, self.now + 1)
        heapq.heappush(self._heap, (self._expires[timer], timer))

    def cancel(self, timer: int) -> None:
        self._expires.pop(timer, None)

    def advance(self, now: int) -> set[int]:
        """Advance time; return the timers that expired."""
        expired = set()
        while self._heap and self._heap[0][0] <= now:
            at, timer = heapq.heappop(self._heap)
            if self._expires.get(timer) == at:
                del self._expires[timer]
                expired.add(timer)
        self.now = now
        return expired

    def next(self) -> int | None:
        """Return the earliest tick at which a timer expires."""
        return min(self._expires.values(), default=None)
