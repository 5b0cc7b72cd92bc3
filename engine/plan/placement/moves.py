"""Move pods one at a time: the scheduler's filters choose the nodes, requests decide among them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.constraints import Constraints
from engine.plan.placement.room import Room, Rule
from engine.plan.snapshot.columns import NO_NODE, Snapshot


class Mover:
    """Place pods of a snapshot on `room.open` nodes, and take moves back.

    Without `constraints` requests alone decide.
    """

    def __init__(self, snapshot: Snapshot, room: Room, constraints: Constraints | None, rule: Rule) -> None:
        self._snapshot, self.room, self._constraints, self._rule = snapshot, room, constraints, rule

    def place(self, row: int, source: int, request: NDArray[np.int64]) -> tuple[int, str]:
        """Move a pod from its node `source` and return its new one, or -1 and the reason why there is none.

        Raise `Undecidable`.
        """
        room, constraints = self.room, self._constraints
        allowed, out = room.open, list[tuple[str, int]]()
        target = NO_NODE
        if constraints is None:
            target = room.choose(request, self._rule)
        else:
            constraints.leave(row)
            allowed = room.open.copy()
            try:
                for why, nodes in constraints.allowed(row):
                    before = int(allowed.sum())
                    allowed &= nodes
                    if int(allowed.sum()) < before:
                        out.append((why, before - int(allowed.sum())))
                target = room.choose(request, self._rule, allowed)
            finally:
                constraints.enter(row, target if target != NO_NODE else source)
        if target == NO_NODE:
            return target, self._lacking(request, allowed, out)
        room.take(target, request)
        return target, ""

    def undo(self, row: int, source: int, target: int, request: NDArray[np.int64]) -> None:
        """Take back a move from `source` to `target`."""
        self.room.take(target, request, -1)
        if self._constraints is not None:
            self._constraints.leave(row)
            self._constraints.enter(row, source)

    def _lacking(
        self, request: NDArray[np.int64], allowed: NDArray[np.bool_], out: list[tuple[str, int]]
    ) -> str:
        """Explain why no node takes a pod: how many nodes each filter excludes, then what the others are
        short of.
        """
        room = self.room
        if not room.open.any():
            return "no other node"
        said = [f"{count} excluded by {why}" for why, count in out]
        if allowed.any():
            said.append(f"{int(allowed.sum())} without {self._short(request, allowed)}")
        return f"no node of {int(room.open.sum())}: {', '.join(said)}"

    def _short(self, request: NDArray[np.int64], allowed: NDArray[np.bool_]) -> str:
        room = self.room
        if not (room.slots[allowed] > 0).any():
            return "a free pod slot"
        for index, name in enumerate(self._snapshot.resources.names):
            if request[index] and not (room.free[index][allowed] >= request[index]).any():
                return f"enough {name}"
        return "enough of all resources at once"
