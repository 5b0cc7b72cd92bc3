"""Schedule pods of a snapshot one at a time, as the scheduler v1.36 does: filters, then scores."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.causes import named
from engine.plan.placement.filters import NOT_READY, SchedulerFilters, has_scheduling_constraints
from engine.plan.placement.node_capacity import NodeCapacity, Rule
from engine.plan.placement.scores import NodeScores
from engine.plan.snapshot.columns import NO_NODE, Snapshot

Choice = Literal["scheduler", "spread", "pack"]


class ScheduleResult(NamedTuple):
    """Hold the `node` of a scheduled pod and how many other nodes have an equal score; or -1, and the
    `reason` why no node takes the pod.
    """

    node: int
    reason: str = ""
    equal: int = 0


class PodScheduler:
    """Schedule pods onto the nodes in `capacity.open`, and undo what was scheduled.

    Without `filters` requests alone decide, and the choice "scheduler" means the emptiest node.
    """

    def __init__(
        self, snapshot: Snapshot, capacity: NodeCapacity, filters: SchedulerFilters | None, choice: Choice
    ) -> None:
        self._snapshot, self.capacity, self._filters = snapshot, capacity, filters
        self._rule: Rule = "spread" if choice == "scheduler" else choice
        self._scores: NodeScores | None = None
        if filters is not None and choice == "scheduler":
            self._scores = NodeScores(snapshot, capacity, filters)

    @classmethod
    def over_all_nodes(cls, snapshot: Snapshot, choice: Choice) -> PodScheduler:
        """Return a scheduler over all nodes, with filters if the snapshot holds the constraints of pods."""
        capacity = NodeCapacity(snapshot)
        known = has_scheduling_constraints(snapshot)
        if known:
            # With the filters, cordoning is a taint, which a pod may tolerate.
            capacity.open[:] = True
        return cls(snapshot, capacity, SchedulerFilters(snapshot) if known else None, choice)

    def schedule(self, row: int, source: int, request: NDArray[np.int64]) -> ScheduleResult:
        """Move a pod from its node `source` (-1: none) to the best other node; `request` is int64[resources].

        What the pod requests on its source stays counted there. Raise `Undecidable`.
        """
        capacity, filters = self.capacity, self._filters
        found = ScheduleResult(NO_NODE)
        if filters is None:
            found = ScheduleResult(capacity.choose(request, self._rule))
            if found.node == NO_NODE:
                return ScheduleResult(NO_NODE, self._unschedulable(request, row))
        else:
            # Off its node first: its own host ports, volumes and labels must not exclude the pod.
            filters.remove_pod(row)
            try:
                found = self._select(row, request, filters.allowed(row, capacity.open))
                if found.node == NO_NODE:
                    return ScheduleResult(NO_NODE, self._unschedulable(request, row))
            finally:
                filters.add_pod(row, found.node if found.node != NO_NODE else source)
        self._update(row, found.node, request)
        return found

    def _select(self, row: int, request: NDArray[np.int64], allowed: NDArray[np.bool_]) -> ScheduleResult:
        """Return the best of the `allowed` nodes with these amounts, the first of equal ones."""
        if self._scores is None:
            return ScheduleResult(self.capacity.choose(request, self._rule, allowed))
        nodes = self.capacity.fitting(request, allowed)
        if not nodes.any():
            return ScheduleResult(NO_NODE)
        best = self._scores.best(row, request, nodes)
        return ScheduleResult(int(best[0]), equal=len(best) - 1)

    def undo(self, row: int, source: int, target: int, request: NDArray[np.int64]) -> None:
        """Undo `schedule`, which moved a pod from `source` to `target`."""
        self._update(row, target, request, -1)
        if self._filters is not None:
            self._filters.remove_pod(row)
            self._filters.add_pod(row, source)

    def remove_pod(self, row: int, node: int, request: NDArray[np.int64]) -> None:
        """Remove a pod and its requests from its node."""
        self._update(row, node, request, -1)
        if self._filters is not None:
            self._filters.remove_pod(row)

    def add_pod(self, row: int, node: int, request: NDArray[np.int64]) -> None:
        """Put a pod and its requests on a node, whether it fits or not."""
        self._update(row, node, request)
        if self._filters is not None:
            self._filters.add_pod(row, node)

    def fits(self, row: int, node: int, request: NDArray[np.int64]) -> bool:
        """Return whether a node takes a pod that is on no node. Raise `Undecidable`."""
        capacity = self.capacity
        if capacity.slots[node] < 1 or (capacity.free[:, node] < request)[request > 0].any():
            return False
        filters = self._filters.filter(row) if self._filters is not None else ()
        return all(one.nodes[node] for one in filters)

    def _update(self, row: int, node: int, request: NDArray[np.int64], sign: int = 1) -> None:
        # The capacity first: scores are computed from it.
        self.capacity.update(node, request, sign)
        if self._scores is not None:
            self._scores.update(row, node, sign)

    def _unschedulable(self, request: NDArray[np.int64], row: int) -> str:
        """Explain why no node takes a pod, which is on none: how many of the nodes that passed the filters
        before it each filter excludes, with the causes by name, and the resource that the others lack.
        """
        capacity = self.capacity
        if not capacity.open.any():
            return "no other node"
        allowed, parts = capacity.open.copy(), list[str]()
        for reason, nodes, causes in self._filters.filter(row) if self._filters is not None else ():
            excluded = allowed & ~nodes
            count = int(excluded.sum())
            if count:
                by = "" if reason == NOT_READY else "excluded by "
                parts.append(f"{count} {by}{reason}{named(causes(excluded), count)}")
                allowed &= nodes
        if allowed.any():
            parts.append(f"{int(allowed.sum())} without {self._lacking(request, allowed)}")
        return f"no node of {int(capacity.open.sum())}: {', '.join(parts)}"

    def _lacking(self, request: NDArray[np.int64], allowed: NDArray[np.bool_]) -> str:
        """Return the first resource that none of the `allowed` nodes has enough of."""
        capacity = self.capacity
        if not (capacity.slots[allowed] > 0).any():
            return "a free pod slot"
        for index, name in enumerate(self._snapshot.resources.names):
            if request[index] and not (capacity.free[index][allowed] >= request[index]).any():
                return f"enough {name}"
        return "enough of all resources at once"
