"""Choose the pods that the scheduler preempts for one that fits nowhere: DefaultPreemption, v1.36."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.budgets import BudgetPace, Budgets
from engine.plan.placement.moves import Mover
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.snapshot.columns import NO_NODE, Snapshot

MAX_CANDIDATES: Final = 100
"""Nodes of which the victims are found; the scheduler takes as many, or a tenth of the nodes."""


@dataclass(frozen=True)
class SchedulerPreemption:
    """Name the node and the pods, rows of the snapshot, that leave it for a pod of higher priority."""

    node: int
    victims: tuple[int, ...]


class Preemptor:
    """Find victims on one snapshot while pods move in it."""

    def __init__(self, snapshot: Snapshot, mover: Mover) -> None:
        self._snapshot, self._mover = snapshot, mover
        self._priority: NDArray[np.int32] = snapshot.pods["priority"].to_numpy()

    def find(
        self, row: int, request: NDArray[np.int64], node_of_pod: NDArray[np.int64]
    ) -> SchedulerPreemption | None:
        """Return the preemption that costs least; None if pods of lower priority are not enough.

        `node_of_pod`, int64[placed], is where pods are now. Raise `Undecidable`.
        """
        priority = int(self._priority[row])
        lower = (self._priority[: len(node_of_pod)] < priority) & (node_of_pod != NO_NODE)
        if not lower.any() or priority in self._never:
            return None
        found = []
        for node in self._candidates(request, np.where(lower, node_of_pod, NO_NODE)):
            victims = self._victims(row, node, request, np.flatnonzero(lower & (node_of_pod == node)))
            if victims is not None:
                found.append((self._cost(*victims), node, victims[0]))
        if not found:
            return None
        _, node, chosen = min(found, key=lambda one: (one[0], one[1]))
        return SchedulerPreemption(node, tuple(chosen))

    def _candidates(self, request: NDArray[np.int64], lower: NDArray[np.int64]) -> list[int]:
        """Return nodes on which the amounts are enough without pods of lower priority."""
        capacity, rows = self._mover.capacity, np.flatnonzero(lower != NO_NODE)
        counts = np.bincount(lower[rows], minlength=self._snapshot.node_count)
        fits = capacity.open & (counts > 0) & (capacity.slots + counts > 0)
        for index in np.flatnonzero(request):
            amounts = self._requests[rows, index].astype(np.float64)
            freed = np.bincount(lower[rows], amounts, self._snapshot.node_count).astype(np.int64)
            fits &= capacity.free[index] + freed >= request[index]
        # The scheduler begins at a random node. Here it is the first one, so that the same question has the
        # same answer.
        return [int(node) for node in np.flatnonzero(fits)[:MAX_CANDIDATES]]

    def _victims(
        self, row: int, node: int, request: NDArray[np.int64], lower: NDArray[np.int64]
    ) -> tuple[list[int], int] | None:
        """Return the pods that must leave a node, and how many budgets would be exceeded; None if the pod
        does not fit without all of them either.

        First all leave; then each comes back if the pod still fits, protected and important ones first.
        """
        mover, requests = self._mover, self._requests
        ordered = lower[np.lexsort((self._created[lower], -self._priority[lower]))].tolist()
        pace = BudgetPace(self._budgets, lower)
        protected = {one for one in ordered if not pace.leave(one)}
        for one in ordered:
            mover.leave(one, node, requests[one])
        victims: list[int] | None = None
        if mover.fits(row, node, request):
            victims = []
            for one in sorted(ordered, key=lambda one: one not in protected):
                mover.enter(one, node, requests[one])
                if not mover.fits(row, node, request):
                    mover.leave(one, node, requests[one])
                    victims.append(one)
        for one in ordered if victims is None else victims:
            mover.enter(one, node, requests[one])
        return None if victims is None else (victims, len(protected & set(victims)))

    def _cost(self, victims: list[int], broken: int) -> tuple[int, int, int, int, float]:
        """Return the order in which the scheduler prefers nodes: fewest exceeded budgets, lowest priorities,
        fewest pods, youngest important pods.
        """
        priorities = [int(self._priority[one]) for one in victims]
        highest = max(priorities, default=-(2**31))
        oldest = min(
            (float(self._created[one]) for one in victims if self._priority[one] == highest), default=0.0
        )
        # As in the scheduler, the sum counts from the lowest possible priority: otherwise more victims of
        # negative priority would cost less.
        return broken, highest, sum(one + 2**31 for one in priorities), len(victims), -oldest

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
    def _never(self) -> set[int]:
        """Return priorities whose classes all forbid preemption. (A snapshot holds no pod's class.)"""
        rows = self._snapshot.priority_classes.to_pylist()
        forbidding = {int(row["value"]) for row in rows if row["preemption_policy"] == "Never"}
        return forbidding - {int(row["value"]) for row in rows if row["preemption_policy"] != "Never"}
