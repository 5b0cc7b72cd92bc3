"""Eviction order of a table's pods."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.ranking.eviction_ranking import order_by_count, order_by_excess
from engine.api.pod import Pod
from engine.tables.columns import PodColumns, Rows
from engine.tables.names import EPHEMERAL_STORAGE_ID, MEMORY_ID
from engine.tables.pods import PodTable

Ranked = Literal["memory", "ephemeral-storage", "inodes", "processes"]

Integers: TypeAlias = "array[int] | NDArray[Any]"
"""A column for the kernels: of an agent, which does without NumPy, or of the planner."""

_FRACTION_OF: Final = {MEMORY_ID: 0, EPHEMERAL_STORAGE_ID: 1}
_NO_FRACTION: Final = (0, 0)


class Standing(msgspec.Struct, frozen=True):
    """Hold what puts pods in order besides their usage, one entry a pod.

    priority int32[n]; request int64[n] of what is short; fraction int32[n] or None, by how many billionths
    `request` was rounded up.
    """

    priority: Integers
    request: Integers
    fraction: Integers | None


def standing(columns: PodColumns, rows: Rows, by: Ranked) -> Standing:
    """Return the standing of the given rows, in their order."""
    resource = MEMORY_ID if by == "memory" else EPHEMERAL_STORAGE_ID
    fraction = None
    if columns.fractions:
        of = _FRACTION_OF[resource]
        fraction = np.array([columns.fractions.get(row, _NO_FRACTION)[of] for row in rows.tolist()], np.int32)
    return Standing(columns.priority[rows], columns.ranking[resource][rows], fraction)


def standing_of_pods(table: PodTable, rows: Sequence[int], pods: Sequence[Pod], by: Ranked) -> Standing:
    """Return the standing of pods: by their rows, or by their specs if they have none (-1).

    Raises `InvalidInput` for an amount in a spec that no table takes.
    """
    resource = MEMORY_ID if by == "memory" else EPHEMERAL_STORAGE_ID
    # Pods that were never admitted here, such as those of an earlier agent, have no row in the node's table.
    others = PodTable.from_pods(pod for pod, row in zip(pods, rows, strict=True) if row < 0)
    absent = iter(others.live_rows())
    places = [(table.cells, row) if row >= 0 else (others.cells, next(absent)) for row in rows]
    fractions = [cells.fractions.get(row, _NO_FRACTION)[_FRACTION_OF[resource]] for cells, row in places]
    return Standing(
        array("i", [cells.priority[row] for cells, row in places]),
        array("q", [cells.ranking[resource, row] for cells, row in places]),
        array("i", fractions) if any(fractions) else None,
    )


def standing_order(pods: Standing, by: Ranked, usage: Integers, known: Integers) -> array[int]:
    """Return positions int32[n], first to be evicted first; `usage` and `known` as for `eviction_order`."""
    # `rankPIDPressure` has no requests to compare with.
    if by == "processes":
        return order_by_count(usage, known, pods.priority)
    return order_by_excess(usage, known, pods.request, pods.fraction, pods.priority, by == "inodes")


def eviction_order(
    columns: PodColumns,
    rows: Rows,
    by: Ranked,
    usage: NDArray[np.int64],
    known: NDArray[np.uint8],
) -> Rows:
    """Return the given rows, first to be evicted first (kubelet v1.36).

    `rows` int32[n] says which pods take part and in which order they are listed (equal pods keep it);
    `usage` int64[n] and `known` uint8[n] go with it: bytes, inodes (any is above the request, and the
    excess is over the ephemeral-storage request in bytes, as the kubelet does) or processes; known 0 is a
    pod without stats.
    """
    order: Rows = np.asarray(standing_order(standing(columns, rows, by), by, usage, known))
    return rows.take(order)
