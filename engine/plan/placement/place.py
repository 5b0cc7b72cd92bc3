"""Assign nodes to the unplaced pods of a trace by requests alone, in order of time or of size."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.plan.placement.node_capacity import NodeCapacity, Rule, largest_first, request_matrix
from engine.plan.snapshot.columns import NO_NODE, Snapshot, arranged
from engine.plan.snapshot.lazy_table import whole

Order = Literal["time", "size"]


def place(snapshot: Snapshot, *, rule: Rule = "spread", order: Order = "time") -> tuple[Snapshot, int]:
    """Return a snapshot in which the pods that wait for a node have one, and how many pods fit nowhere.

    With order `time`, pods are placed in the order of their creation, and a deleted pod (column `deleted`)
    frees its resources at that time. With order `size`, the pods that exist when the snapshot is taken are
    placed, the largest first. Pods that do not exist at that time stay unplaced, and placed pods stay where
    they are.
    """
    pods = whole(snapshot.pods)
    node = pods["node"].to_numpy().copy()
    phase = pods["phase"].to_pylist()
    unplaced = np.flatnonzero(node == NO_NODE)
    waiting = unplaced[[phase[row] not in ("Succeeded", "Failed") for row in unplaced.tolist()]]
    trace = _Trace(
        NodeCapacity(snapshot),
        request_matrix(snapshot, waiting),
        pods["created"].to_numpy()[waiting],
        _deletion_times(snapshot)[waiting],
        float(snapshot.meta.get("taken_at", np.inf)),
    )
    if order == "time":
        node[waiting], missed = _place_by_time(trace, rule)
    else:
        node[waiting], missed = _place_by_size(trace, rule, largest_first(snapshot, trace.requests))
    index = pods.schema.get_field_index("node")
    placed = pods.set_column(index, "node", pa.array(node, pa.int32()))
    meta = snapshot.meta | {"placed_by": f"{rule} by requests, in order of {order}"}
    result = arranged(whole(snapshot.nodes), placed, templates=snapshot.templates, meta=meta)
    result = replace(result, images=snapshot.images, devices=snapshot.devices, budgets=snapshot.budgets)
    return result, missed


class _Trace(NamedTuple):
    """Hold the pods that wait for a node: their requests, int64[n, resources], and their times of creation
    and deletion (infinite: never) in Unix seconds, float64[n]. The snapshot is taken at `until`.
    """

    capacity: NodeCapacity
    requests: NDArray[np.int64]
    created: NDArray[np.float64]
    deleted: NDArray[np.float64]
    until: float


def _place_by_time(trace: _Trace, rule: Rule) -> tuple[NDArray[np.int32], int]:
    """Return int32[n]: the node of each pod at the end, -1 for none; and how many pods fitted nowhere.

    A pod that fits nowhere at its creation is not tried again later.
    """
    capacity, requests, created, deleted, until = trace
    node = np.full(len(created), NO_NODE, np.int32)
    deletions: list[tuple[float, int]] = []
    missed = 0
    for index in np.argsort(created, kind="stable").tolist():
        if created[index] > until:
            continue
        while deletions and deletions[0][0] <= created[index]:
            _, ended = heapq.heappop(deletions)
            capacity.update(int(node[ended]), requests[ended], -1)
            node[ended] = NO_NODE
        if not _place_one(capacity, rule, requests[index], node, index):
            missed += 1
        elif np.isfinite(deleted[index]):
            heapq.heappush(deletions, (float(deleted[index]), index))
    for time, ended in deletions:
        if time <= until:
            node[ended] = NO_NODE
    return node, missed


def _place_by_size(trace: _Trace, rule: Rule, sequence: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Return int32[n]: the node of each pod that exists at the end, -1 for none; and how many of these fit
    nowhere. Pods are placed in the order of `sequence`.
    """
    capacity, requests, created, deleted, until = trace
    node = np.full(len(created), NO_NODE, np.int32)
    missed = 0
    for index in sequence.tolist():
        if created[index] > until or deleted[index] <= until:
            continue
        if not _place_one(capacity, rule, requests[index], node, index):
            missed += 1
    return node, missed


def _place_one(
    capacity: NodeCapacity, rule: Rule, request: NDArray[np.int64], node: NDArray[np.int32], index: int
) -> bool:
    """Assign a node to the pod at `index`; return False if no node takes it."""
    chosen = capacity.choose(request, rule)
    if chosen == NO_NODE:
        return False
    capacity.update(chosen, request)
    node[index] = chosen
    return True


def _deletion_times(snapshot: Snapshot) -> NDArray[np.float64]:
    """Return float64[pods]: when each pod was deleted in Unix seconds, infinite if it was not."""
    if "deleted" not in snapshot.pods.column_names:
        return np.full(snapshot.pods.num_rows, np.inf)
    deleted: NDArray[np.float64] = snapshot.pods["deleted"].fill_null(np.inf).to_numpy()
    return deleted
