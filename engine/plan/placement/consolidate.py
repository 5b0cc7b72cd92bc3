"""Find nodes that are not needed: empty one after another, the least requested first, as autoscalers do.

A node stays if one of its pods has no other node, may not be disrupted, or would not be created again. Daemon
pods end with their node. Nodes with static pods of their own, and control planes, are not candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.constraints import Constraints, knows_constraints
from engine.plan.placement.moves import Mover
from engine.plan.placement.node_capacity import NodeCapacity, Rule, largest_first, request_matrix
from engine.plan.placement.owners import bound_to_node, without_controller
from engine.plan.placement.topology import Undecidable
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.objects import node_object

CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"


@dataclass
class Consolidation:
    """Hold the result: `removable` nodes in order, why each other candidate is `needed`, and the node of each
    placed pod afterwards (-1: it ends with its node).
    """

    node_of_pod: NDArray[np.int64]
    removable: list[int] = field(default_factory=list)
    needed: dict[int, str] = field(default_factory=dict)


def consolidate(snapshot: Snapshot, held: NDArray[np.bool_], *, rule: Rule = "pack") -> Consolidation:
    """Empty nodes while their pods fit elsewhere; `held`, bool[placed], are pods that may not be moved."""
    found = Consolidation(snapshot.column("node").astype(np.int64))
    constraints = Constraints(snapshot) if knows_constraints(snapshot) else None
    capacity = NodeCapacity(snapshot)
    capacity.open &= snapshot.nodes["ready"].fill_null(True).to_numpy(zero_copy_only=False)
    mover = Mover(snapshot, capacity, constraints, rule)
    staying = bound_to_node(snapshot)
    single = without_controller(snapshot)
    requests = request_matrix(snapshot, np.arange(snapshot.placed))
    total = np.maximum(capacity.total[:2], 1)
    requested = ((capacity.total[:2] - capacity.free[:2]) / total).max(axis=0)
    for node in np.argsort(requested, kind="stable").tolist():
        if not capacity.open[node] or CONTROL_PLANE in node_object(snapshot, node).labels:
            continue
        pods = np.flatnonzero((found.node_of_pod == node) & ~staying)
        why = _obstacle(snapshot, pods, held, single)
        if not why:
            why = _empty(snapshot, mover, found, node, pods, requests[pods])
        if why:
            found.needed[node] = why
            continue
        found.removable.append(node)
        found.node_of_pod[found.node_of_pod == node] = NO_NODE
    return found


def _obstacle(
    snapshot: Snapshot, pods: NDArray[np.int64], held: NDArray[np.bool_], single: NDArray[np.bool_]
) -> str:
    for mask, said in (
        (held, "may not be disrupted: its budget allows none"),
        (single, "has no controller that would create it again"),
    ):
        hit = pods[mask[pods]]
        if len(hit):
            return f"{snapshot.pod_label(int(hit[0]))} {said}"
    return ""


def _empty(
    snapshot: Snapshot,
    mover: Mover,
    found: Consolidation,
    node: int,
    pods: NDArray[np.int64],
    requests: NDArray[np.int64],
) -> str:
    """Move all pods of a node, or none; return why not."""
    mover.capacity.open[node] = False
    done: list[tuple[int, int, NDArray[np.int64]]] = []
    why = ""
    for index in largest_first(snapshot, requests).tolist():
        row = int(pods[index])
        try:
            target, lacking, _ = mover.place(row, node, requests[index])
        except Undecidable as unknown:
            target, lacking = NO_NODE, str(unknown)
        if target == NO_NODE:
            why = f"{snapshot.pod_label(row)}: {lacking}"
            break
        done.append((row, target, requests[index]))
    if why:
        for row, target, request in reversed(done):
            mover.undo(row, node, target, request)
        mover.capacity.open[node] = True
        return why
    for row, target, _ in done:
        found.node_of_pod[row] = target
    return ""
