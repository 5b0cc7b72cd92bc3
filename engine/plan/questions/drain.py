"""Find where the pods of some nodes could go, and what prevents a node from being drained.

Daemon pods and static pods stay with their node. For every other pod the scheduler's filters
(`engine.plan.placement.constraints`) choose the nodes that may take it, and requests decide among them
(`engine.plan.placement.room`). Disruption budgets that the drain would exceed are named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.placement.constraints import Constraints, knows_constraints
from engine.plan.placement.moves import Mover
from engine.plan.placement.owners import of_daemon_sets, without_controller
from engine.plan.placement.room import Room, Rule, largest_first, request_matrix
from engine.plan.placement.topology import Undecidable
from engine.plan.questions.budgets import Budgets
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.selection import select_nodes
from engine.tables import MIRROR, STATIC

LIMITS = (
    "not checked: how many volumes a node can attach, dynamic resource claims, scores of the scheduler; "
    "where pods go is one possible placement"
)
ADD_VOLUMES = "add persistentvolumeclaims,persistentvolumes to kubectl get for the volumes"
NO_CONSTRAINTS = (
    "the snapshot holds no taints, selectors, affinity or volumes of pods: placed by requests alone, "
    "which does not prove that a node can be drained"
)


class DrainParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of drain."""

    nodes: Annotated[list[str], Meta(description="nodes to empty: names or patterns such as node-1*")] = []
    selector: Annotated[str, Meta(description="nodes to empty: labels, as kubectl takes them")] = ""
    rule: Annotated[Rule, Meta(description="spread (emptiest node first) or pack (fullest that fits)")] = (
        "spread"
    )


@dataclass
class _Course:
    """Track what happens to the pods of one node."""

    moved: int = 0
    obstacles: Counter[str] = field(default_factory=Counter)


def drain(snapshot: Snapshot, parameters: DrainParameters) -> Answer:
    """Return rows `move` (object the pod, reason the new node), `stays` (daemons and static pods), `remains`
    (no node takes it), `unknown` (the snapshot lacks what the decision needs) and `breaks-budget`. Per node
    `drained` (amount: pods moved) if all its other pods fit elsewhere, `not-drained` (amount: pods that
    prevent it), or `unverified` if the snapshot holds no constraints of pods at all.
    """
    if not parameters.nodes and not parameters.selector:
        raise InvalidInput("name nodes or give a selector", subject="nodes")
    rows = Rows(snapshot.node_names)
    chosen = select_nodes(snapshot, parameters.nodes, parameters.selector)
    leaving = np.zeros(snapshot.node_count, bool)
    leaving[chosen] = True
    node = snapshot.column("node")
    pods = _moving(snapshot, np.flatnonzero(leaving[node]), rows)
    constraints = Constraints(snapshot) if knows_constraints(snapshot) else None
    rows.note(NO_CONSTRAINTS if constraints is None else LIMITS)
    requests = request_matrix(snapshot, pods)
    room = Room(snapshot)
    # With constraints, cordoning is a taint, which a pod may tolerate.
    room.open = ~leaving if constraints is not None else room.open & ~leaving
    mover = Mover(snapshot, room, constraints, parameters.rule)
    courses = {source: _Course() for source in chosen.tolist()}
    for index in largest_first(snapshot, requests).tolist():
        row = int(pods[index])
        source = int(node[row])
        course, label = courses[source], snapshot.pod_label(row)
        try:
            target, why = mover.place(row, source, requests[index])
        except Undecidable as unknown:
            rows.add(source, "unknown", label, str(unknown), 1, "pods")
            course.obstacles["about which too little is known"] += 1
            if "snapshot" in str(unknown):
                rows.note(ADD_VOLUMES)
            continue
        if target == NO_NODE:
            rows.add(source, "remains", label, why, 1, "pods")
            course.obstacles["for which no node has room"] += 1
            continue
        course.moved += 1
        rows.add(source, "move", label, f"to {snapshot.node_names[target]}", 1, "pods")
    for budget, allowed, hit, first in Budgets(snapshot).broken(pods):
        reason = f"{hit} pods at once, {allowed} allowed"
        rows.add(int(node[first]), "breaks-budget", budget, reason, hit - allowed, "pods")
        if not allowed:
            courses[int(node[first])].obstacles[f"of {budget}, which allows no disruption"] += hit
    for source, course in courses.items():
        _conclude(rows, source, course, verified=constraints is not None)
    return rows.answer(sort=True)


def _moving(snapshot: Snapshot, candidates: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    """Return the pods that must leave; add rows for those that stay."""
    node, flags = snapshot.column("node"), snapshot.column("flags")
    daemons, single = of_daemon_sets(snapshot), without_controller(snapshot)
    moving = []
    for row in candidates.tolist():
        # A static pod's mirror is owned by its Node.
        if daemons[row] or flags[row] & (STATIC | MIRROR):
            kind = "a daemon's pod" if daemons[row] else "a static pod"
            rows.add(int(node[row]), "stays", snapshot.pod_label(row), kind, 1, "pods")
        else:
            moving.append(row)
    alone = int(single[moving].sum())
    if alone:
        rows.note("pods without a controller: kubectl drain refuses them, nothing creates them again", alone)
    return np.array(moving, np.int64)


def _conclude(rows: Rows, source: int, course: _Course, *, verified: bool) -> None:
    if course.obstacles:
        said = ", ".join(
            f"{count} {'pod' if count == 1 else 'pods'} {what}" for what, count in course.obstacles.items()
        )
        rows.add(source, "not-drained", "", said, sum(course.obstacles.values()), "pods")
    elif verified:
        rows.add(source, "drained", "", "all its other pods fit elsewhere", course.moved, "pods")
    else:
        rows.add(source, "unverified", "", "by requests alone", course.moved, "pods")
