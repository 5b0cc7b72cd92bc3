"""Limits connections; when all slots are taken, the longest-idle one is dropped for a new peer.

Idle connections, however many and however often renewed, therefore cannot keep others out.
"""

from __future__ import annotations

from collections.abc import Callable


class ConnectionSlot:
    """The slot of one peer. It is idle while the agent waits for the peer."""

    def __init__(self, crowd: ConnectionLimiter, drop: Callable[[], None]) -> None:
        self._crowd = crowd
        self.drop = drop

    def work(self) -> None:
        """Mark the slot as busy: the peer gets an answer and keeps its slot until it is idle."""
        if self in self._crowd.silent:
            del self._crowd.silent[self]
            self._crowd.working.add(self)

    def fall_silent(self) -> None:
        """Mark the slot as idle: the agent waits for the peer."""
        if self in self._crowd:
            self.leave()
            self._crowd.silent[self] = None

    def leave(self) -> None:
        self._crowd.silent.pop(self, None)
        self._crowd.working.discard(self)


class ConnectionLimiter:
    """At most `limit` slots; `silent` holds the idle ones, longest idle first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.silent: dict[ConnectionSlot, None] = {}
        self.working: set[ConnectionSlot] = set()

    def __contains__(self, place: ConnectionSlot) -> bool:
        return place in self.silent or place in self.working

    @property
    def at_work(self) -> int:
        return len(self.working)

    def enter(self, drop: Callable[[], None]) -> ConnectionSlot | None:
        """Return a slot, if necessary that of an idle peer whose `drop` is called; None if all are busy."""
        if len(self.silent) + len(self.working) >= self._limit:
            oldest = next(iter(self.silent), None)
            if oldest is None:
                return None
            oldest.leave()
            oldest.drop()
        place = ConnectionSlot(self, drop)
        self.silent[place] = None
        return place
