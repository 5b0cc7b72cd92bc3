"""Move pods one at a time: the scheduler's filters leave some nodes, its scores or requests choose one."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.constraints import Constraints, knows_constraints
from engine.plan.placement.node_capacity import NodeCapacity, Rule
from engine.plan.placement.scores import NodeScores
from engine.plan.snapshot.columns import NO_NODE, Snapshot

Choice = Literal["scheduler", "spread", "pack"]


class Placement(NamedTuple):
    """Hold the `node` that a pod got, and how many others were equally good; or -1 and the `reason` why
    there is none.
    """

    node: int
    reason: str = ""
    equal: int = 0


class Mover:
    """Place pods of a snapshot on `capacity.open` nodes, and take moves back.

    Without `constraints` requests alone decide, and the scheduler's choice is the emptiest node.
    """

    def __init__(
        self, snapshot: Snapshot, capacity: NodeCapacity, constraints: Constraints | None, choice: Choice
    ) -> None:
        self._snapshot, self.capacity, self._constraints = snapshot, capacity, constraints
        self._rule: Rule = "spread" if choice == "scheduler" else choice
        scored = constraints is not None and choice == "scheduler"
        self._scores = (
            NodeScores(snapshot, capacity, constraints) if scored and constraints is not None else None
        )

    @classmethod
    def over_all_nodes(cls, snapshot: Snapshot, choice: Choice) -> Mover:
        """Return a mover over every node that takes pods, with the constraints that the snapshot has."""
        capacity = NodeCapacity(snapshot)
        known = knows_constraints(snapshot)
        if known:
            # With constraints, cordoning is a taint, which a pod may tolerate.
            capacity.open[:] = True
        return cls(snapshot, capacity, Constraints(snapshot) if known else None, choice)

    def place(self, row: int, source: int, request: NDArray[np.int64]) -> Placement:
        """Move a pod from its node `source`, -1 for none, whose amounts stay booked.

        Raise `Undecidable`.
        """
        capacity, constraints = self.capacity, self._constraints
        allowed, out = capacity.open, list[tuple[str, int]]()
        found = Placement(NO_NODE)
        if constraints is None:
            found = Placement(capacity.choose(request, self._rule))
        else:
            constraints.leave(row)
            allowed = capacity.open.copy()
            left = int(np.count_nonzero(allowed))
            try:
                for why, nodes in constraints.allowed(row):
                    before = left
                    allowed &= nodes
                    left = int(np.count_nonzero(allowed))
                    if left < before:
                        out.append((why, before - left))
                found = self._chosen(row, request, allowed)
            finally:
                constraints.enter(row, found.node if found.node != NO_NODE else source)
        if found.node == NO_NODE:
            return Placement(NO_NODE, self._lacking(request, allowed, out))
        self._take(row, found.node, request)
        return found

    def _chosen(self, row: int, request: NDArray[np.int64], allowed: NDArray[np.bool_]) -> Placement:
        if self._scores is None:
            return Placement(self.capacity.choose(request, self._rule, allowed))
        nodes = self.capacity.fitting(request, allowed)
        if not nodes.any():
            return Placement(NO_NODE)
        best = self._scores.best(row, request, nodes)
        return Placement(int(best[0]), equal=len(best) - 1)

    def undo(self, row: int, source: int, target: int, request: NDArray[np.int64]) -> None:
        """Take back a move from `source` to `target`."""
        self._take(row, target, request, -1)
        if self._constraints is not None:
            self._constraints.leave(row)
            self._constraints.enter(row, source)

    def leave(self, row: int, node: int, request: NDArray[np.int64]) -> None:
        """Take a pod and its amounts off its node."""
        self._take(row, node, request, -1)
        if self._constraints is not None:
            self._constraints.leave(row)

    def enter(self, row: int, node: int, request: NDArray[np.int64]) -> None:
        """Put a pod on a node, whether it fits or not."""
        self._take(row, node, request)
        if self._constraints is not None:
            self._constraints.enter(row, node)

    def fits(self, row: int, node: int, request: NDArray[np.int64]) -> bool:
        """Tell whether a pod that is on no node fits on this one. Raise `Undecidable`."""
        capacity = self.capacity
        if capacity.slots[node] < 1 or (capacity.free[:, node] < request)[request > 0].any():
            return False
        filters = self._constraints.allowed(row) if self._constraints is not None else ()
        return all(nodes[node] for _, nodes in filters)

    def _take(self, row: int, node: int, request: NDArray[np.int64], sign: int = 1) -> None:
        self.capacity.take(node, request, sign)
        if self._scores is not None:
            self._scores.take(row, node, sign)

    def _lacking(
        self, request: NDArray[np.int64], allowed: NDArray[np.bool_], out: list[tuple[str, int]]
    ) -> str:
        """Explain why no node takes a pod: how many nodes each filter excludes, then what the others are
        short of.
        """
        capacity = self.capacity
        if not capacity.open.any():
            return "no other node"
        said = [f"{count} excluded by {why}" for why, count in out]
        if allowed.any():
            said.append(f"{int(allowed.sum())} without {self._short(request, allowed)}")
        return f"no node of {int(capacity.open.sum())}: {', '.join(said)}"

    def _short(self, request: NDArray[np.int64], allowed: NDArray[np.bool_]) -> str:
        capacity = self.capacity
        if not (capacity.slots[allowed] > 0).any():
            return "a free pod slot"
        for index, name in enumerate(self._snapshot.resources.names):
            if request[index] and not (capacity.free[index][allowed] >= request[index]).any():
                return f"enough {name}"
        return "enough of all resources at once"
