"""Who may be inside where places are few: the one that has been silent longest makes room for who comes.

So connections that say nothing, however many and however often renewed, can't keep others out.
"""

from __future__ import annotations

from collections.abc import Callable


class ConnectionSlot:
    """One peer's. It is silent until it is at work, and again when it waits for the peer."""

    def __init__(self, crowd: ConnectionLimiter, drop: Callable[[], None]) -> None:
        self._crowd = crowd
        self.drop = drop

    def work(self) -> None:
        """The peer is owed an answer: it keeps its place until it falls silent."""
        if self in self._crowd.silent:
            del self._crowd.silent[self]
            self._crowd.working.add(self)

    def fall_silent(self) -> None:
        """From now on it is the peer's turn."""
        if self in self._crowd:
            self.leave()
            self._crowd.silent[self] = None

    def leave(self) -> None:
        self._crowd.silent.pop(self, None)
        self._crowd.working.discard(self)


class ConnectionLimiter:
    """At most `limit` places; `silent` in the order in which they fell silent."""

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
        """A silent place, if need be of another whose `drop` is called; None where all are at work."""
        if len(self.silent) + len(self.working) >= self._limit:
            oldest = next(iter(self.silent), None)
            if oldest is None:
                return None
            oldest.leave()
            oldest.drop()
        place = ConnectionSlot(self, drop)
        self.silent[place] = None
        return place
