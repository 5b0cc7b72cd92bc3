"""Find where the pods of some nodes would go, and what prevents a node from being drained.

Daemon pods and static pods stay with their node. The others leave in rounds, as disruption budgets allow
(`engine.plan.placement.draining`); the scheduler's filters and scores choose their nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.placement.draining import DrainResult, DrainSimulation, PodMove
from engine.plan.placement.filters import has_scheduling_constraints
from engine.plan.placement.node_capacity import largest_first, request_matrix
from engine.plan.placement.owners import of_daemon_sets, without_controller
from engine.plan.placement.scheduler import Choice, PodScheduler
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.selection import select_nodes
from engine.tables import MIRROR, STATIC

LIMITS = (
    "not checked: other profiles of the scheduler than the default one; all pods count as healthy for budgets"
)
SAMPLED = (
    "with 100 nodes or more the scheduler scores only some of them, so it may choose another than the best"
)
BY_REQUESTS = "where pods go is one possible placement: by requests, not by the scheduler's scores"
ADD_OBJECTS = (
    "add persistentvolumeclaims,persistentvolumes,storageclasses,csinodes to kubectl get for volumes, and "
    "resourceslices,resourceclaims,resourceclaimtemplates,deviceclasses for devices"
)
NO_CONSTRAINTS = (
    "the snapshot holds no taints, selectors, affinity or volumes of pods: placed by requests alone, "
    "which does not prove that a node can be drained"
)
SINGLE = "has no controller that would create it again: kubectl drain refuses it without --force"


class DrainParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of drain."""

    nodes: Annotated[list[str], Meta(description="nodes to empty: names or patterns such as node-1*")] = []
    selector: Annotated[str, Meta(description="nodes to empty: labels, as kubectl takes them")] = ""
    rule: Annotated[
        Choice,
        Meta(description="the scheduler's scores, spread (emptiest node first) or pack (fullest that fits)"),
    ] = "scheduler"
    force: Annotated[
        bool, Meta(description="delete pods without a controller, as kubectl drain --force does")
    ] = False
    preemption: Annotated[
        bool, Meta(description="whether pods may preempt pods of lower priority, as in the scheduler")
    ] = True


@dataclass
class _Fate:
    """Track what happens to the pods of one node."""

    moved: int = 0
    obstacles: Counter[str] = field(default_factory=Counter)


def drain(snapshot: Snapshot, parameters: DrainParameters) -> Answer:
    """Return rows `move` (object the pod, reason the new node), `stays` (daemons and static pods), `remains`
    (no node takes it, or a budget keeps it), `lost` (with force: nothing creates it again), `unknown` (the
    snapshot lacks what the decision needs), `displaced` (a pod of lower priority that is preempted and gets
    no node), `breaks-budget` (amount: pods that it keeps) and `paces` (amount: rounds, if a budget makes the
    drain take several). Per node `drained` (amount: pods moved) if all its other pods fit elsewhere,
    `not-drained` (amount: pods that prevent it), or `unverified` if the snapshot has no constraints of pods.
    """
    if not parameters.nodes and not parameters.selector:
        raise InvalidInput("name nodes or give a selector", subject="nodes")
    rows = Rows(snapshot.node_names)
    chosen = select_nodes(snapshot, parameters.nodes, parameters.selector)
    leaving = np.zeros(snapshot.node_count, bool)
    leaving[chosen] = True
    node = snapshot.column("node")
    fates = {source: _Fate() for source in chosen.tolist()}
    known = has_scheduling_constraints(snapshot)
    pods = _moving(snapshot, np.flatnonzero(leaving[node]), rows, fates, parameters, known=known)
    _note(snapshot, rows, parameters, known=known)
    scheduler = PodScheduler.over_all_nodes(snapshot, parameters.rule)
    scheduler.capacity.open &= ~leaving
    if parameters.rule != "scheduler":
        pods = pods[largest_first(snapshot, request_matrix(snapshot, pods))]
    course = DrainSimulation(snapshot, scheduler, preempts=parameters.preemption and known).run(pods)
    _add_course(snapshot, rows, fates, course)
    for source, fate in fates.items():
        _conclude(rows, source, fate, verified=known)
    return rows.answer(sort=True)


def _note(snapshot: Snapshot, rows: Rows, parameters: DrainParameters, *, known: bool) -> None:
    rows.note(LIMITS if known else NO_CONSTRAINTS)
    if known and parameters.rule != "scheduler":
        rows.note(BY_REQUESTS)
    elif known and snapshot.node_count >= 100:
        rows.note(SAMPLED)


def _moving(
    snapshot: Snapshot,
    candidates: NDArray[np.int64],
    rows: Rows,
    fates: dict[int, _Fate],
    parameters: DrainParameters,
    *,
    known: bool,
) -> NDArray[np.int64]:
    """Return the pods that must leave and are created again; add rows for the others."""
    node, flags = snapshot.column("node"), snapshot.column("flags")
    daemons, single = of_daemon_sets(snapshot), without_controller(snapshot)
    moving = []
    for row in candidates.tolist():
        source, label = int(node[row]), snapshot.pod_label(row)
        # A static pod's mirror is owned by its Node.
        if daemons[row] or flags[row] & (STATIC | MIRROR):
            rows.add(source, "stays", label, "a daemon's pod" if daemons[row] else "a static pod", 1, "pods")
        elif known and single[row] and parameters.force:
            rows.add(source, "lost", label, "has no controller that would create it again", 1, "pods")
        elif known and single[row]:
            rows.add(source, "remains", label, SINGLE, 1, "pods")
            fates[source].obstacles["without a controller"] += 1
        else:
            moving.append(row)
    return np.array(moving, np.int64)


def _add_course(snapshot: Snapshot, rows: Rows, fates: dict[int, _Fate], course: DrainResult) -> None:
    """Add a row for each pod of the drain, and for each that it displaces."""
    node = snapshot.column("node")
    last = {move.row: move for move in course.moves}
    for move in course.moves:
        if last[move.row] is move and move.row not in course.unplaced:
            rows.add(
                int(node[move.row]),
                "move",
                snapshot.pod_label(move.row),
                _way(snapshot, move, course),
                1,
                "pods",
            )
            if int(node[move.row]) in fates:
                fates[int(node[move.row])].moved += 1
    for found, obstacle in (
        (course.unplaced, "for which no node has room"),
        (course.undecided, "about which too little is known"),
        (course.blocked, ""),
    ):
        for row, why in found.items():
            source, label = int(node[row]), snapshot.pod_label(row)
            if source not in fates:
                rows.add(source, "displaced", label, why, 1, "pods")
                continue
            decision = "unknown" if found is course.undecided else "remains"
            rows.add(source, decision, label, why, 1, "pods")
            if obstacle:
                fates[source].obstacles[obstacle] += 1
            if decision == "unknown" and "snapshot" in why:
                rows.note(ADD_OBJECTS)
    _add_budgets(node, rows, fates, course)


def _way(snapshot: Snapshot, move: PodMove, course: DrainResult) -> str:
    """Describe where a pod goes, such as `to n2 (equally good: 1 other), in round 2`."""
    said = f"to {snapshot.node_names[move.target]}"
    if move.victims:
        said += f", where it preempts {', '.join(snapshot.pod_label(row) for row in move.victims)}"
    if move.equal:
        said += f" (equally good: {counted(move.equal, 'other')})"
    return f"{said}, in round {move.round}" if course.rounds > 1 else said


def _add_budgets(node: NDArray[np.int32], rows: Rows, fates: dict[int, _Fate], course: DrainResult) -> None:
    for budget in course.budgets:
        first = int(node[min(budget.pods)])
        if budget.blocked:
            kept = Counter(int(node[row]) for row in budget.blocked)
            for source, count in kept.items():
                said = (
                    f"allows {budget.allowed} disruptions at once, of {len(budget.pods)} pods that must leave"
                )
                rows.add(source, "breaks-budget", budget.name, said, count, "pods")
                what = "which allows no disruption" if not budget.allowed else "which waits for evicted pods"
                fates[source].obstacles[f"of {budget.name}, {what}"] += count
        elif 0 < budget.allowed < len(budget.pods):
            said = f"{budget.allowed} of {len(budget.pods)} pods at once"
            rows.add(first, "paces", budget.name, said, -(-len(budget.pods) // budget.allowed), "rounds")


def _conclude(rows: Rows, source: int, fate: _Fate, *, verified: bool) -> None:
    if fate.obstacles:
        said = ", ".join(f"{counted(count, 'pod')} {what}" for what, count in fate.obstacles.items())
        rows.add(source, "not-drained", "", said, sum(fate.obstacles.values()), "pods")
    elif verified:
        rows.add(source, "drained", "", "all its other pods fit elsewhere", fate.moved, "pods")
    else:
        rows.add(source, "unverified", "", "by requests alone", fate.moved, "pods")
