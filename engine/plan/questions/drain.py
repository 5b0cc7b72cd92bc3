"""drain: pods of some nodes placed on the rest by their requests; what remains without a place, and why.

Pods of daemons and mirror pods stay with their node. Disruption budgets are checked: those that the drain
would break are named. The placement rule is `engine.plan.placement.room`, not the scheduler's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.placement.room import Room, Rule, largest_first, request_matrix
from engine.plan.questions.budgets import Budgets
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.selection import select_nodes
from engine.tables import MIRROR, STATIC


class DrainParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What drain takes."""

    nodes: Annotated[list[str], Meta(description="nodes to empty: names or patterns such as node-1*")] = []
    selector: Annotated[str, Meta(description="nodes to empty: labels, as kubectl takes them")] = ""
    rule: Annotated[Rule, Meta(description="spread (emptiest node first) or pack (fullest that fits)")] = (
        "spread"
    )


def drain(snapshot: Snapshot, parameters: DrainParameters) -> Answer:
    """Rows `move` (object the pod, reason the new node), `stays` (daemons), `remains` (fits nowhere, amount
    its milli-CPU) and `breaks-budget`; per drained node `drained` (pods moved).
    """
    if not parameters.nodes and not parameters.selector:
        raise InvalidInput("name nodes or give a selector", subject="nodes")
    rows = Rows(snapshot.node_names)
    rows.note("pods are placed by requests alone: no affinity, taints, spread or volumes")
    chosen = select_nodes(snapshot, parameters.nodes, parameters.selector)
    leaving = np.zeros(snapshot.node_count, bool)
    leaving[chosen] = True
    node = snapshot.column("node")
    candidates = np.flatnonzero(leaving[node])
    owner = snapshot.pods["owner"].slice(0, snapshot.placed).to_numpy(zero_copy_only=False)
    flags = snapshot.column("flags")
    moving = []
    for row in candidates.tolist():
        daemon = owner[row].startswith("DaemonSet/")
        if daemon or flags[row] & (STATIC | MIRROR):
            kind = "a daemon's pod" if daemon else "a static pod"
            rows.add(int(node[row]), "stays", snapshot.pod_label(row), kind, 1, "pods")
        else:
            moving.append(row)
    pods = np.array(moving, np.int64)
    requests = request_matrix(snapshot, pods)
    room = Room(snapshot)
    room.open &= ~leaving
    moved = np.zeros(snapshot.node_count, np.int64)
    budgets = Budgets(snapshot)
    for index in largest_first(snapshot, requests).tolist():
        row = int(pods[index])
        target = room.choose(requests[index], parameters.rule)
        source = int(node[row])
        if target == NO_NODE:
            lacking = _lacking(snapshot, room, requests[index])
            rows.add(
                source, "remains", snapshot.pod_label(row), lacking, int(requests[index][0]), "milli-CPU"
            )
            continue
        room.take(target, requests[index])
        moved[source] += 1
        rows.add(source, "move", snapshot.pod_label(row), f"to {snapshot.node_names[target]}", 1, "pods")
    for budget, allowed, hit, first in budgets.broken(pods):
        reason = f"{hit} pods at once, {allowed} allowed"
        rows.add(int(node[first]), "breaks-budget", budget, reason, hit - allowed, "pods")
    for source in chosen.tolist():
        rows.add(source, "drained", "", "pods moved elsewhere", int(moved[source]), "pods")
    return rows.answer(sort=True)


def _lacking(snapshot: Snapshot, room: Room, request: NDArray[np.int64]) -> str:
    """Why no node takes a pod: the resource that no open node has enough of, or that they do not coincide."""
    if not room.open.any():
        return "no other node takes pods"
    for index, name in enumerate(snapshot.resources.names):
        if request[index] and not (room.free[index][room.open] >= request[index]).any():
            return f"no node has enough {name}"
    return "no node has enough of everything at once"
