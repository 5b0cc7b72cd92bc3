"""Limits connections; when all slots are taken, the longest-idle one is dropped for a new peer.

Idle connections, however many and however often renewed, therefore cannot keep others out.
"""

from __future__ import annotations

from collections.abc import Callable


class ConnectionSlot:
    """Hold the slot of one peer. It is idle while the agent waits for the peer."""

    def __init__(self, limiter: ConnectionLimiter, drop: Callable[[], None]) -> None:
        self._limiter = limiter
        self.drop = drop

    def work(self) -> None:
        """Mark the slot as busy: the peer gets an answer and keeps its slot until it is idle."""
        if self in self._limiter.idle:
            del self._limiter.idle[self]
            self._limiter.working.add(self)

    def set_idle(self) -> None:
        """Mark the slot as idle: the agent waits for the peer."""
        if self in self._limiter:
            self.release()
            self._limiter.idle[self] = None

    def release(self) -> None:
        self._limiter.idle.pop(self, None)
        self._limiter.working.discard(self)


class ConnectionLimiter:
    """Hand out at most `limit` slots; `idle` holds the idle ones, longest idle first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.idle: dict[ConnectionSlot, None] = {}
        self.working: set[ConnectionSlot] = set()

    def __contains__(self, slot: ConnectionSlot) -> bool:
        return slot in self.idle or slot in self.working

    @property
    def at_work(self) -> int:
        return len(self.working)

    def enter(self, drop: Callable[[], None]) -> ConnectionSlot | None:
        """Return a slot, or None if all are busy. If none is free, the longest-idle peer loses its slot, and
        its `drop` is called.
        """
        if len(self.idle) + len(self.working) >= self._limit:
            oldest = next(iter(self.idle), None)
            if oldest is None:
                return None
            # Released before `drop`, whose handler may release it again or enter another peer.
            oldest.release()
            oldest.drop()
        slot = ConnectionSlot(self, drop)
        self.idle[slot] = None
        return slot
