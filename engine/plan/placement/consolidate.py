"""Find nodes that a cluster can do without, as the cluster autoscaler scales down.

Nodes are emptied one after another, the one with the smallest requested share first. A node is needed if one
of its pods fits on no other node, may not be disrupted, or has no controller that creates it again. Daemon
pods and static pods end with their node. Nodes of the control plane are not candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.filters import SchedulerFilters, has_scheduling_constraints
from engine.plan.placement.node_capacity import NodeCapacity, Rule, largest_first, request_matrix
from engine.plan.placement.owners import bound_to_node, without_controller
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.placement.topology import Undecidable
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.objects import node_object

CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"


@dataclass
class Consolidation:
    """Hold the `removable` nodes in the order of their removal, the reason why each other candidate is
    `needed`, and int64[placed]: the node of each pod afterwards, -1 if the pod ends with its node.
    """

    node_of_pod: NDArray[np.int64]
    removable: list[int] = field(default_factory=list)
    needed: dict[int, str] = field(default_factory=dict)


def consolidate(
    snapshot: Snapshot, undisruptable: NDArray[np.bool_], *, rule: Rule = "pack"
) -> Consolidation:
    """Empty each node whose pods fit elsewhere. Pods in `undisruptable`, bool[placed], are not moved."""
    found = Consolidation(snapshot.column("node").astype(np.int64))
    filters = SchedulerFilters(snapshot) if has_scheduling_constraints(snapshot) else None
    capacity = NodeCapacity(snapshot)
    capacity.open &= snapshot.nodes["ready"].fill_null(True).to_numpy(zero_copy_only=False)
    scheduler = PodScheduler(snapshot, capacity, filters, rule)
    bound = bound_to_node(snapshot)
    uncontrolled = without_controller(snapshot)
    requests = request_matrix(snapshot, np.arange(snapshot.placed))
    total = np.maximum(capacity.total[:2], 1)
    requested = ((capacity.total[:2] - capacity.free[:2]) / total).max(axis=0)
    # The order is that of the snapshot: pods which move onto a node do not change its turn.
    for node in np.argsort(requested, kind="stable").tolist():
        if not capacity.open[node] or CONTROL_PLANE in node_object(snapshot, node).labels:
            continue
        pods = np.flatnonzero((found.node_of_pod == node) & ~bound)
        reason = _unmovable(snapshot, pods, undisruptable, uncontrolled)
        if not reason:
            reason = _move_pods(snapshot, scheduler, found, node, pods, requests[pods])
        if reason:
            found.needed[node] = reason
            continue
        found.removable.append(node)
        found.node_of_pod[found.node_of_pod == node] = NO_NODE
    return found


def _unmovable(
    snapshot: Snapshot,
    pods: NDArray[np.int64],
    undisruptable: NDArray[np.bool_],
    uncontrolled: NDArray[np.bool_],
) -> str:
    """Return the first of some pods that may not leave its node, with the reason; "" if all may."""
    for mask, reason in (
        (undisruptable, "may not be disrupted: its budget allows none"),
        (uncontrolled, "has no controller that would create it again"),
    ):
        hit = pods[mask[pods]]
        if len(hit):
            return f"{snapshot.pod_label(int(hit[0]))} {reason}"
    return ""


def _move_pods(
    snapshot: Snapshot,
    scheduler: PodScheduler,
    found: Consolidation,
    node: int,
    pods: NDArray[np.int64],
    requests: NDArray[np.int64],
) -> str:
    """Move all pods of a node, or none of them; return why one fits on no other node, "" if all do."""
    scheduler.capacity.open[node] = False
    moved: list[tuple[int, int, NDArray[np.int64]]] = []
    for index in largest_first(snapshot, requests).tolist():
        row = int(pods[index])
        try:
            target, reason, _ = scheduler.schedule(row, node, requests[index])
        except Undecidable as unknown:
            target, reason = NO_NODE, str(unknown)
        if target == NO_NODE:
            for done, its_target, request in reversed(moved):
                scheduler.undo(done, node, its_target, request)
            scheduler.capacity.open[node] = True
            return f"{snapshot.pod_label(row)}: {reason}"
        moved.append((row, target, requests[index]))
    for row, target, _ in moved:
        found.node_of_pod[row] = target
    return ""
