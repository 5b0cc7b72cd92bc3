"""Follow a drain: rounds of evictions as budgets allow them, each followed by the scheduler.

In a round every pod leaves that its budget lets go. Then the scheduler places their replacements, the
highest priority first. A pod that has no node preempts pods of lower priority, which then queue in turn. In
the next round the pods that have a node count as healthy again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.budgets import BudgetPace, Budgets, PacedBudget
from engine.plan.placement.moves import Mover
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.placement.owners import bound_to_node
from engine.plan.placement.preemption import Preemptor
from engine.plan.placement.topology import Undecidable
from engine.plan.snapshot.columns import NO_NODE, Snapshot


@dataclass(frozen=True)
class PodMove:
    """Tell where a pod of the drain, or one that it displaced, goes: to `target`, equally good as `equal`
    other nodes, in a round from 1 on; `victims` leave the target for it.
    """

    row: int
    source: int
    target: int
    round: int
    equal: int = 0
    victims: tuple[int, ...] = ()


@dataclass
class DrainCourse:
    """Hold the moves in their order, and for each pod without a node the reason: `unplaced` have left theirs,
    `blocked` never leave, `undecided` ones need data that the snapshot lacks.
    """

    moves: list[PodMove] = field(default_factory=list)
    unplaced: dict[int, str] = field(default_factory=dict)
    blocked: dict[int, str] = field(default_factory=dict)
    undecided: dict[int, str] = field(default_factory=dict)
    budgets: list[PacedBudget] = field(default_factory=list)
    rounds: int = 0


class Draining:
    """Empty nodes of a snapshot. `mover.capacity.open` says which nodes may take pods."""

    def __init__(self, snapshot: Snapshot, mover: Mover, *, preempts: bool) -> None:
        self._snapshot, self._mover = snapshot, mover
        self._preemptor = Preemptor(snapshot, mover) if preempts else None
        self._priority = snapshot.column("priority")
        self._node = snapshot.column("node").astype(np.int64)
        self._course = DrainCourse()
        self._requests: dict[int, NDArray[np.int64]] = {}
        self._sources: dict[int, int] = {}
        self._pace = BudgetPace(Budgets(snapshot), np.zeros(0, np.int64))

    def run(self, pods: NDArray[np.int64]) -> DrainCourse:
        """Move these pods, in this order except for priority and budgets."""
        requests = request_matrix(self._snapshot, pods)
        self._requests = {row: requests[place] for place, row in enumerate(pods.tolist())}
        self._sources = {row: int(self._node[row]) for row in pods.tolist()}
        self._pace = BudgetPace(Budgets(self._snapshot), pods)
        course, waiting = self._course, pods.tolist()
        course.budgets = self._pace.budgets
        while waiting:
            leaving = [row for row in waiting if self._pace.leave(row)]
            if not leaving:
                break
            course.rounds += 1
            for row in leaving:
                self._mover.leave(row, int(self._node[row]), self._requests[row])
                self._node[row] = NO_NODE
            self._schedule(leaving)
            gone = set(leaving)
            waiting = [row for row in waiting if row not in gone]
        course.blocked = {row: self._pace.block(row) for row in waiting}
        return course

    def _schedule(self, rows: list[int]) -> None:
        """Place pods that are on no node, and those that they preempt."""
        queue = [(-int(self._priority[row]), place, row) for place, row in enumerate(rows)]
        heapq.heapify(queue)
        count = len(queue)
        while queue:
            row = heapq.heappop(queue)[2]
            for victim in self._place(row):
                heapq.heappush(queue, (-int(self._priority[victim]), count, victim))
                count += 1

    def _place(self, row: int) -> tuple[int, ...]:
        """Place one pod; return those that leave for it and are created again."""
        course, mover, request = self._course, self._mover, self._requests[row]
        victims: tuple[int, ...] = ()
        equal = 0
        try:
            found = mover.place(row, NO_NODE, request)
            target, equal = found.node, found.equal
            if target == NO_NODE and self._preemptor is not None:
                preemption = self._preemptor.find(row, request, self._node)
                if preemption is not None:
                    target, victims = preemption.node, preemption.victims
                    self._displace(target, victims)
                    mover.enter(row, target, request)
        except Undecidable as unknown:
            course.undecided[row] = str(unknown)
            return ()
        if target == NO_NODE:
            course.unplaced[row] = found.reason
            return ()
        self._node[row] = target
        self._pace.back(row)
        course.moves.append(PodMove(row, self._sources[row], target, course.rounds, equal, victims))
        return tuple(victim for victim in victims if not self._pinned[victim])

    def _displace(self, node: int, victims: tuple[int, ...]) -> None:
        for victim, request in zip(
            victims, request_matrix(self._snapshot, np.array(victims, np.int64)), strict=True
        ):
            self._mover.leave(victim, node, request)
            self._requests[victim] = request
            self._sources.setdefault(victim, node)
            self._node[victim] = NO_NODE
            if self._pinned[victim]:
                self._course.unplaced[victim] = "belongs to this node alone"

    @cached_property
    def _pinned(self) -> NDArray[np.bool_]:
        """Return bool[placed]: daemons and static pods, which no other node takes."""
        return bound_to_node(self._snapshot)
