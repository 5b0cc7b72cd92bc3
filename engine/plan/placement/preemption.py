"""Choose the victims that the scheduler preempts for a pod that fits nowhere: DefaultPreemption, v1.36.

This is the preemption of the scheduler, across nodes. The kubelet's own, for critical pods on one node, is in
`engine.admission.preemption`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.budgets import Budgets, EvictionBudgets
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.snapshot.columns import NO_NODE, Snapshot

MAX_CANDIDATES: Final = 100
"""Nodes whose victims are computed (`minCandidateNodesAbsolute`; above 1000 nodes the scheduler uses a tenth
of all nodes)."""


@dataclass(frozen=True)
class SchedulerPreemption:
    """Hold the node of a preemption and its victims, rows of the snapshot."""

    node: int
    victims: tuple[int, ...]


class Preemptor:
    """Find the victims of preemptions in one snapshot, in the state that `scheduler` tracks."""

    def __init__(self, snapshot: Snapshot, scheduler: PodScheduler) -> None:
        self._snapshot, self._scheduler = snapshot, scheduler

    def find(
        self, row: int, request: NDArray[np.int64], node_of_pod: NDArray[np.int32]
    ) -> SchedulerPreemption | None:
        """Return the preemption that costs least for a pod; None if evicting all pods of lower priority does
        not help, or its class forbids preemption.

        `request` is int64[resources], `node_of_pod` int32[placed] the current node of each pod. Raise
        `Undecidable`.
        """
        priority = int(self._priority[row])
        lower = (self._priority[: len(node_of_pod)] < priority) & (node_of_pod != NO_NODE)
        if not lower.any() or priority in self._never_preempting:
            return None
        candidates = []
        for node in self._candidate_nodes(request, np.where(lower, node_of_pod, NO_NODE)):
            found = self._victims_on_node(row, node, request, np.flatnonzero(lower & (node_of_pod == node)))
            if found is not None:
                victims, violations = found
                candidates.append((self._cost(victims, violations), node, victims))
        if not candidates:
            return None
        _, node, victims = min(candidates, key=lambda one: (one[0], one[1]))
        return SchedulerPreemption(node, tuple(victims))

    def _candidate_nodes(self, request: NDArray[np.int64], lower: NDArray[np.int32]) -> list[int]:
        """Return the first nodes that have the amounts once all pods of lower priority are gone; `lower` is
        int32[placed]: the node of each such pod, -1 for other pods.
        """
        capacity, rows = self._scheduler.capacity, np.flatnonzero(lower != NO_NODE)
        counts = np.bincount(lower[rows], minlength=self._snapshot.node_count)
        fits = capacity.open & (counts > 0) & (capacity.slots + counts > 0)
        for index in np.flatnonzero(request):
            amounts = self._requests[rows, index].astype(np.float64)
            freed = np.bincount(lower[rows], amounts, self._snapshot.node_count).astype(np.int64)
            fits &= capacity.free[index] + freed >= request[index]
        # The scheduler begins at a random node. Here it is the first one, so that the same question has the
        # same answer.
        return [int(node) for node in np.flatnonzero(fits)[:MAX_CANDIDATES]]

    def _victims_on_node(
        self, row: int, node: int, request: NDArray[np.int64], lower: NDArray[np.int64]
    ) -> tuple[list[int], int] | None:
        """Return the victims on a node, and how many of them violate a disruption budget; None if the pod
        does not fit even without any pod of lower priority.

        All of `lower` are removed first. Then each is added back and reprieved if the pod still fits: those
        whose budget would be violated first, then by priority and age. All pods are back at the end.
        """
        scheduler, requests = self._scheduler, self._requests
        ordered = lower[np.lexsort((self._created[lower], -self._priority[lower]))].tolist()
        budgets = EvictionBudgets(self._budgets, lower)
        violating = {one for one in ordered if not budgets.evict(one)}
        for one in ordered:
            scheduler.remove_pod(one, node, requests[one])
        victims: list[int] | None = None
        if scheduler.fits(row, node, request):
            victims = []
            for one in sorted(ordered, key=lambda one: one not in violating):
                scheduler.add_pod(one, node, requests[one])
                if not scheduler.fits(row, node, request):
                    scheduler.remove_pod(one, node, requests[one])
                    victims.append(one)
        for one in ordered if victims is None else victims:
            scheduler.add_pod(one, node, requests[one])
        return None if victims is None else (victims, len(violating & set(victims)))

    def _cost(self, victims: list[int], violations: int) -> tuple[int, int, int, int, float]:
        """Return a key by which the scheduler prefers nodes, the least first: fewest budget violations,
        lowest highest priority, lowest sum of priorities, fewest victims, latest start of the
        highest-priority victims.
        """
        priorities = [int(self._priority[one]) for one in victims]
        highest = max(priorities, default=-(2**31))
        oldest = min(
            (float(self._created[one]) for one in victims if self._priority[one] == highest), default=0.0
        )
        # As in the scheduler, the sum counts from the lowest possible priority: otherwise more victims of
        # negative priority would cost less.
        return violations, highest, sum(one + 2**31 for one in priorities), len(victims), -oldest

    @cached_property
    def _priority(self) -> NDArray[np.int32]:
        priority: NDArray[np.int32] = self._snapshot.pods["priority"].to_numpy()
        return priority

    @cached_property
    def _created(self) -> NDArray[np.float64]:
        created: NDArray[np.float64] = self._snapshot.pods["created"].to_numpy()
        return created

    @cached_property
    def _requests(self) -> NDArray[np.int64]:
        return request_matrix(self._snapshot, np.arange(self._snapshot.placed))

    @cached_property
    def _budgets(self) -> Budgets:
        return Budgets(self._snapshot)

    @cached_property
    def _never_preempting(self) -> set[int]:
        """Return the priorities whose PriorityClasses all have the preemption policy Never.

        A snapshot holds the priority of a pod, but not its class.
        """
        rows = self._snapshot.priority_classes.to_pylist()
        forbidding = {int(row["value"]) for row in rows if row["preemption_policy"] == "Never"}
        return forbidding - {int(row["value"]) for row in rows if row["preemption_policy"] != "Never"}
