"""Eviction order of a table's pods."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from engine._fast.eviction_ranking import order_by_count, order_by_excess
from engine.tables.columns import PodColumns, Rows
from engine.tables.names import EPHEMERAL_STORAGE_ID, MEMORY_ID

Ranked = Literal["memory", "ephemeral-storage", "inodes", "processes"]

_FRACTION_OF: Final = {MEMORY_ID: 0, EPHEMERAL_STORAGE_ID: 1}


def eviction_order(
    columns: PodColumns,
    rows: Rows,
    by: Ranked,
    usage: NDArray[np.int64],
    known: NDArray[np.uint8],
) -> Rows:
    """The given rows, first to be evicted first (kubelet v1.36).

    `rows` int32[n] says which pods take part and in which order they are listed (equal pods keep it);
    `usage` int64[n] and `known` uint8[n] go with it: bytes, inodes (any is above the request, and the
    excess is over the ephemeral-storage request in bytes, as the kubelet does) or processes; known 0 is a
    pod without stats.
    """
    priority = columns.priority[rows]
    if by == "processes":
        return rows[order_by_count(usage, known, priority)]
    resource = MEMORY_ID if by == "memory" else EPHEMERAL_STORAGE_ID
    fraction = None
    if columns.fractions:
        none = (0, 0)
        fraction = np.array(
            [columns.fractions.get(row, none)[_FRACTION_OF[resource]] for row in rows.tolist()], np.int32
        )
    return rows[
        order_by_excess(usage, known, columns.ranking[resource][rows], fraction, priority, by == "inodes")
    ]
