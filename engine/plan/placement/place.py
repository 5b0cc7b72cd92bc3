"""Assign nodes to pods without one, by time or largest first, spread or packed by requests."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.plan.placement.node_capacity import NodeCapacity, Rule, largest_first, request_matrix
from engine.plan.snapshot.columns import NO_NODE, Snapshot, arranged
from engine.plan.snapshot.lazy_table import whole

Order = Literal["time", "size"]


def place(snapshot: Snapshot, *, rule: Rule = "spread", order: Order = "time") -> tuple[Snapshot, int]:
    """Return a snapshot in which pods without a node have one, and the number of pods that fit nowhere.

    With `time`, pods are placed in order of creation; pods that the snapshot marks as deleted (column
    `deleted`) free their resources at that time. Pods that do not exist at the time of the snapshot stay
    unplaced; placed ones stay where they are.
    """
    pods = whole(snapshot.pods)
    node = pods["node"].to_numpy().copy()
    phase = pods["phase"].to_pylist()
    waiting = np.array(
        [
            row
            for row in np.flatnonzero(node == NO_NODE).tolist()
            if phase[row] not in ("Succeeded", "Failed")
        ],
        np.int64,
    )
    requests = request_matrix(snapshot, waiting)
    capacity = NodeCapacity(snapshot)
    created = pods["created"].to_numpy()[waiting]
    deleted = _deletions(snapshot)[waiting]
    sequence = np.argsort(created, kind="stable") if order == "time" else largest_first(snapshot, requests)
    ends: list[tuple[float, int, int]] = []
    missed = 0
    until = float(snapshot.meta.get("taken_at", np.inf))
    for index in sequence.tolist():
        if created[index] > until:
            continue
        if order == "time":
            while ends and ends[0][0] <= created[index]:
                _, gone, at = heapq.heappop(ends)
                capacity.take(at, requests[gone], -1)
                node[waiting[gone]] = NO_NODE
        elif deleted[index] <= until:
            continue
        chosen = capacity.choose(requests[index], rule)
        if chosen == NO_NODE:
            missed += 1
            continue
        capacity.take(chosen, requests[index])
        node[waiting[index]] = chosen
        if order == "time" and np.isfinite(deleted[index]):
            heapq.heappush(ends, (float(deleted[index]), index, chosen))
    if order == "time":
        for at_time, gone, _ in ends:
            if at_time <= until:
                node[waiting[gone]] = NO_NODE
    at = pods.schema.get_field_index("node")
    placed = pods.set_column(at, "node", pa.array(node, pa.int32()))
    meta = snapshot.meta | {"placed_by": f"{rule} by requests, in order of {order}"}
    fresh = arranged(whole(snapshot.nodes), placed, templates=snapshot.templates, meta=meta)
    return replace(fresh, images=snapshot.images, devices=snapshot.devices, budgets=snapshot.budgets), missed


def _deletions(snapshot: Snapshot) -> NDArray[np.float64]:
    """Return float64[pods]: when each pod was deleted, infinite if it was not."""
    if "deleted" not in snapshot.pods.column_names:
        return np.full(snapshot.pods.num_rows, np.inf)
    deleted: NDArray[np.float64] = snapshot.pods["deleted"].fill_null(np.inf).to_numpy()
    return deleted
