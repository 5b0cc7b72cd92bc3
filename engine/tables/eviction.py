"""Eviction order of a table's pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.ranking.eviction_ranking import order_by_count, order_by_excess
from engine.api.pod import Pod
from engine.tables.columns import PodColumns, Rows
from engine.tables.names import EPHEMERAL_STORAGE_ID, MEMORY_ID
from engine.tables.pods import PodTable

Ranked = Literal["memory", "ephemeral-storage", "inodes", "processes"]

_FRACTION_OF: Final = {MEMORY_ID: 0, EPHEMERAL_STORAGE_ID: 1}


class Standing(msgspec.Struct, frozen=True):
    """What puts pods in order beside their usage, one entry a pod.

    priority int32[n]; request int64[n] of what is short; fraction int32[n] or None, by how many billionths
    `request` was rounded up."""

    priority: NDArray[np.int32]
    request: NDArray[np.int64]
    fraction: NDArray[np.int32] | None


def standing(columns: PodColumns, rows: Rows, by: Ranked) -> Standing:
    """Return the standing of the given rows, in their order."""
    resource = MEMORY_ID if by == "memory" else EPHEMERAL_STORAGE_ID
    fraction = None
    if columns.fractions:
        none = (0, 0)
        fraction = np.array(
            [columns.fractions.get(row, none)[_FRACTION_OF[resource]] for row in rows.tolist()], np.int32
        )
    return Standing(columns.priority[rows], columns.ranking[resource][rows], fraction)


def standing_of_pods(table: PodTable, rows: Rows, pods: Sequence[Pod], by: Ranked) -> Standing:
    """Return the standing of pods: by their rows, or by their specs if they have none (-1).

    Raises `InvalidInput` for an amount in a spec that no table takes.
    """
    absent = np.flatnonzero(rows < 0)
    found = standing(table.columns, rows, by)
    if not len(absent):
        return found
    others = PodTable.from_pods(pods[position] for position in absent.tolist())
    there = standing(others.columns, others.rows(), by)
    found.priority[absent] = there.priority
    found.request[absent] = there.request
    fraction = found.fraction
    if fraction is not None or there.fraction is not None:
        fraction = np.zeros(len(pods), np.int32) if fraction is None else fraction
        fraction[absent] = 0 if there.fraction is None else there.fraction
    return Standing(found.priority, found.request, fraction)


def standing_order(
    pods: Standing, by: Ranked, usage: NDArray[np.int64], known: NDArray[np.uint8]
) -> NDArray[np.int32]:
    """Return positions int32[n], first to be evicted first; `usage` and `known` as for `eviction_order`."""
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
    return rows[standing_order(standing(columns, rows, by), by, usage, known)]
