"""Find where the pods of drained nodes would go, and what prevents a node from being drained.

Daemon pods and static pods stay on their node. The others are evicted in rounds, as disruption budgets allow
(`engine.plan.placement.draining`), and the scheduler's filters and scores choose their new nodes.
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
from engine.plan.placement.filters import has_scheduling_constraints, read_columns_ahead
from engine.plan.placement.node_capacity import largest_first, request_matrix
from engine.plan.placement.owners import of_daemon_sets, without_controller
from engine.plan.placement.scheduler import Choice, PodScheduler
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import value_of
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
class _DrainedNode:
    """Count the pods of one node that move, and those that prevent its drain, by reason."""

    moved: int = 0
    obstacles: Counter[str] = field(default_factory=Counter)


def drain(snapshot: Snapshot, parameters: DrainParameters) -> Answer:
    """Return a row per pod of the drained nodes, then one per node.

    Pods: `move` (reason: the new node), `stays` (daemon pods and static pods), `remains` (no node takes the
    pod, or a budget forbids its eviction), `lost` (with force: nothing creates the pod again), `unknown` (the
    snapshot lacks data for the decision), and `displaced` (a pod of another node that is preempted and fits
    nowhere). Budgets: `breaks-budget` (amount: pods that are never evicted) and `paces` (amount: rounds, if a
    budget makes the drain take several). Nodes: `drained` (amount: pods that move), `not-drained` (amount:
    pods that prevent the drain), or `unverified` if the snapshot holds no constraints of pods.
    """
    if not parameters.nodes and not parameters.selector:
        raise InvalidInput("name nodes or give a selector", subject="nodes")
    read_columns_ahead(snapshot)
    rows = Rows(snapshot.node_names)
    chosen = select_nodes(snapshot, parameters.nodes, parameters.selector)
    leaving = np.zeros(snapshot.node_count, bool)
    leaving[chosen] = True
    node = snapshot.column("node")
    drained = {source: _DrainedNode() for source in chosen.tolist()}
    known = has_scheduling_constraints(snapshot)
    pods = _evictable(snapshot, np.flatnonzero(leaving[node]), rows, drained, parameters, known=known)
    _add_notes(snapshot, rows, parameters, known=known)
    scheduler = PodScheduler.over_all_nodes(snapshot, parameters.rule)
    # All nodes are cordoned before the first eviction, so that no pod moves twice.
    scheduler.capacity.open &= ~leaving
    if parameters.rule != "scheduler":
        pods = pods[largest_first(snapshot, request_matrix(snapshot, pods))]
    result = DrainSimulation(snapshot, scheduler, preempts=parameters.preemption and known).run(pods)
    _add_pods(snapshot, rows, drained, result)
    for source, totals in drained.items():
        _add_node(rows, source, totals, verified=known)
    return rows.answer(sort=True)


def _add_notes(snapshot: Snapshot, rows: Rows, parameters: DrainParameters, *, known: bool) -> None:
    rows.note(LIMITS if known else NO_CONSTRAINTS)
    if known and parameters.rule != "scheduler":
        rows.note(BY_REQUESTS)
    elif known and snapshot.node_count >= 100:
        rows.note(SAMPLED)


def _evictable(
    snapshot: Snapshot,
    candidates: NDArray[np.int64],
    rows: Rows,
    drained: dict[int, _DrainedNode],
    parameters: DrainParameters,
    *,
    known: bool,
) -> NDArray[np.int64]:
    """Return the pods that are evicted and created again; add rows for the other `candidates`."""
    node = snapshot.column("node")
    daemons, uncontrolled = of_daemon_sets(snapshot, candidates), without_controller(snapshot, candidates)
    evictable = []
    for place, row in enumerate(candidates.tolist()):
        source, label = int(node[row]), snapshot.pod_label(row)
        # A static pod's mirror is owned by its Node.
        if daemons[place] or value_of(snapshot.pods, "flags", row) & (STATIC | MIRROR):
            why = "a daemon's pod" if daemons[place] else "a static pod"
            rows.add(source, "stays", label, why, 1, "pods")
        elif known and uncontrolled[place] and parameters.force:
            rows.add(source, "lost", label, "has no controller that would create it again", 1, "pods")
        elif known and uncontrolled[place]:
            rows.add(source, "remains", label, SINGLE, 1, "pods")
            drained[source].obstacles["without a controller"] += 1
        else:
            evictable.append(row)
    return np.array(evictable, np.int64)


def _add_pods(snapshot: Snapshot, rows: Rows, drained: dict[int, _DrainedNode], result: DrainResult) -> None:
    """Add a row for each evicted pod, and for each that is preempted for one."""
    node = snapshot.column("node")
    # A pod that was preempted after its move has several moves: only the last one counts.
    last = {move.row: move for move in result.moves}
    for move in result.moves:
        if last[move.row] is move and move.row not in result.unplaced:
            source, reason = int(node[move.row]), _move_text(snapshot, move, result)
            rows.add(source, "move", snapshot.pod_label(move.row), reason, 1, "pods")
            if source in drained:
                drained[source].moved += 1
    for reasons, obstacle in (
        (result.unplaced, "that no other node takes"),
        (result.undecided, "about which too little is known"),
        (result.blocked, ""),
    ):
        for row, reason in reasons.items():
            source, label = int(node[row]), snapshot.pod_label(row)
            if source not in drained:
                rows.add(source, "displaced", label, reason, 1, "pods")
                continue
            decision = "unknown" if reasons is result.undecided else "remains"
            rows.add(source, decision, label, reason, 1, "pods")
            if obstacle:
                drained[source].obstacles[obstacle] += 1
            if decision == "unknown" and "snapshot" in reason:
                rows.note(ADD_OBJECTS)
    _add_budgets(node, rows, drained, result)


def _move_text(snapshot: Snapshot, move: PodMove, result: DrainResult) -> str:
    """Describe where a pod goes, such as `to n2 (equally good: 1 other), in round 2`."""
    text = f"to {snapshot.node_names[move.target]}"
    if move.victims:
        text += f", where it preempts {', '.join(snapshot.pod_label(row) for row in move.victims)}"
    if move.equal:
        text += f" (equally good: {counted(move.equal, 'other')})"
    return f"{text}, in round {move.round}" if result.rounds > 1 else text


def _add_budgets(
    node: NDArray[np.int32], rows: Rows, drained: dict[int, _DrainedNode], result: DrainResult
) -> None:
    """Add a row for each budget that forbids evictions on a node, or that makes the drain take rounds."""
    for budget in result.budgets:
        if budget.blocked:
            blocked_on = Counter(int(node[row]) for row in budget.blocked)
            for source, count in blocked_on.items():
                reason = (
                    f"allows {budget.allowed} disruptions at once, of {len(budget.pods)} pods that must leave"
                )
                rows.add(source, "breaks-budget", budget.name, reason, count, "pods")
                why = "which allows no disruption" if not budget.allowed else "which waits for evicted pods"
                drained[source].obstacles[f"of {budget.name}, {why}"] += count
        elif 0 < budget.allowed < len(budget.pods):
            # A budget spans nodes: its row is on the node of its first pod.
            first = int(node[min(budget.pods)])
            reason = f"{budget.allowed} of {len(budget.pods)} pods at once"
            rows.add(first, "paces", budget.name, reason, -(-len(budget.pods) // budget.allowed), "rounds")


def _add_node(rows: Rows, source: int, totals: _DrainedNode, *, verified: bool) -> None:
    """Add the row that says whether a node can be drained."""
    if totals.obstacles:
        reason = ", ".join(f"{counted(count, 'pod')} {why}" for why, count in totals.obstacles.items())
        rows.add(source, "not-drained", "", reason, sum(totals.obstacles.values()), "pods")
    elif verified:
        rows.add(source, "drained", "", "all its other pods fit elsewhere", totals.moved, "pods")
    else:
        rows.add(source, "unverified", "", "by requests alone", totals.moved, "pods")
