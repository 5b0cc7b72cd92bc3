"""Simulate a drain: rounds of evictions that disruption budgets allow, each followed by scheduling.

In a round every pod whose budget allows it is evicted. Then the scheduler places the replacements, the
highest priority first. A pod that fits nowhere preempts pods of lower priority, whose replacements then join
the queue. What a preemption frees beyond that is offered to the pods that found no node before. In the next
round the pods that have a node count as healthy again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.budgets import Budgets, EvictionBudgets, TrackedBudget
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.placement.owners import bound_to_node
from engine.plan.placement.preemption import Preemptor
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.placement.topology import Undecidable
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.lazy_table import value_of


@dataclass(frozen=True)
class PodMove:
    """Hold the move of an evicted or preempted pod from `source` to `target` in a round, counted from 1.

    `equal` is how many other nodes have the same score. `victims` are preempted on the target.
    """

    row: int
    source: int
    target: int
    round: int
    equal: int = 0
    victims: tuple[int, ...] = ()


@dataclass
class DrainResult:
    """Hold the moves in their order, and the reason for each pod that has no new node.

    `unplaced` pods were evicted or preempted and fit nowhere. `blocked` pods are never evicted. `undecided`
    pods need data that the snapshot does not hold.
    """

    moves: list[PodMove] = field(default_factory=list)
    unplaced: dict[int, str] = field(default_factory=dict)
    blocked: dict[int, str] = field(default_factory=dict)
    undecided: dict[int, str] = field(default_factory=dict)
    budgets: list[TrackedBudget] = field(default_factory=list)
    rounds: int = 0


class DrainSimulation:
    """Move pods off their nodes. `scheduler.capacity.open`, bool[nodes], are the nodes that may take pods."""

    def __init__(self, snapshot: Snapshot, scheduler: PodScheduler, *, preempts: bool) -> None:
        self._snapshot, self._scheduler = snapshot, scheduler
        self._preemptor = Preemptor(snapshot, scheduler) if preempts else None
        self._node = snapshot.column("node").copy()
        self._result = DrainResult()
        self._requests: dict[int, NDArray[np.int64]] = {}
        self._sources: dict[int, int] = {}
        self._budgets = EvictionBudgets(Budgets(snapshot), np.zeros(0, np.int64))
        self._has_preempted = False

    def run(self, pods: NDArray[np.int64]) -> DrainResult:
        """Evict and schedule `pods`, int64[n] rows, in this order as far as budgets and priorities allow."""
        requests = request_matrix(self._snapshot, pods)
        self._requests = {row: requests[place] for place, row in enumerate(pods.tolist())}
        self._sources = {row: int(self._node[row]) for row in pods.tolist()}
        self._budgets = EvictionBudgets(Budgets(self._snapshot), pods)
        result, waiting = self._result, pods.tolist()
        result.budgets = self._budgets.budgets
        # Each round evicts at least one pod, or the rest is blocked: a budget allows a further eviction only
        # after a replacement has a node, and scheduling has just tried all of them.
        while waiting:
            evicted = [row for row in waiting if self._budgets.evict(row)]
            if not evicted:
                break
            result.rounds += 1
            for row in evicted:
                self._scheduler.remove_pod(row, int(self._node[row]), self._requests[row])
                self._node[row] = NO_NODE
            self._schedule_all(evicted)
            done = set(evicted)
            waiting = [row for row in waiting if row not in done]
        result.blocked = {row: self._budgets.mark_blocked(row) for row in waiting}
        return result

    def _schedule_all(self, rows: list[int]) -> None:
        """Schedule pods that are on no node, and then the pods that they preempt."""
        # As in the scheduler's queue, equal priorities keep their order of arrival.
        queue = [(-self._priority(row), place, row) for place, row in enumerate(rows)]
        heapq.heapify(queue)
        arrivals = len(queue)
        while queue:
            row = heapq.heappop(queue)[2]
            again = list(self._schedule(row))
            if not queue and not again and self._has_preempted:
                # As in the scheduler, a pod that goes is a reason to try the pods that found no node again.
                self._has_preempted = False
                again = [one for one in self._result.unplaced if not self._bound[one]]
            for one in again:
                heapq.heappush(queue, (-self._priority(one), arrivals, one))
                arrivals += 1

    def _priority(self, row: int) -> int:
        return int(value_of(self._snapshot.pods, "priority", row))

    def _schedule(self, row: int) -> tuple[int, ...]:
        """Schedule one pod, with preemption if it fits nowhere; return the victims that get replacements."""
        result, scheduler, request = self._result, self._scheduler, self._requests[row]
        result.unplaced.pop(row, None)
        victims: tuple[int, ...] = ()
        equal = 0
        try:
            found = scheduler.schedule(row, NO_NODE, request)
            target, equal = found.node, found.equal
            if target == NO_NODE and self._preemptor is not None:
                preemption = self._preemptor.find(row, request, self._node)
                if preemption is not None:
                    target, victims = preemption.node, preemption.victims
                    self._preempt(target, victims)
                    scheduler.add_pod(row, target, request)
        except Undecidable as unknown:
            result.undecided[row] = str(unknown)
            return ()
        if target == NO_NODE:
            result.unplaced[row] = found.reason
            return ()
        self._node[row] = target
        self._budgets.mark_healthy(row)
        result.moves.append(PodMove(row, self._sources[row], target, result.rounds, equal, victims))
        return tuple(victim for victim in victims if not self._bound[victim])

    def _preempt(self, node: int, victims: tuple[int, ...]) -> None:
        """Remove victims from a node; those that belong to it alone stay without a node."""
        self._has_preempted = True
        for victim, request in zip(
            victims, request_matrix(self._snapshot, np.array(victims, np.int64)), strict=True
        ):
            self._scheduler.remove_pod(victim, node, request)
            self._requests[victim] = request
            # A victim that the drain moved before keeps the node that it had first.
            self._sources.setdefault(victim, node)
            self._node[victim] = NO_NODE
            if self._bound[victim]:
                self._result.unplaced[victim] = "belongs to this node alone"

    @cached_property
    def _bound(self) -> NDArray[np.bool_]:
        """Return bool[placed]: daemon pods and static pods, which no other node takes."""
        return bound_to_node(self._snapshot)
