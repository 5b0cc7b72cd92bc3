"""Rank pods for eviction; the rule, in plain Python.

Source: kubelet v1.36 `eviction/helpers.go` (rankMemoryPressure, rankDiskPressureFunc, rankPIDPressure).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

Integers: TypeAlias = "array[int] | NDArray[Any]"


def look_up(
    pods: Sequence[Any], usage: dict[str, Any], row_of: dict[str, int], name: str
) -> tuple[array[int], array[int], array[int]]:
    """Return for each pod (`metadata.uid`) its row, -1 for none; the amount `name` of its usage (memory,
    processes, amount); and whether that is known, which it is not without usage or if the amount is None.

    Amounts are not negative. int32[n], int64[n], uint8[n].
    """
    uids = [pod.metadata.uid for pod in pods]
    amounts = [getattr(usage[uid], name) if uid in usage else None for uid in uids]
    return (
        array("i", [row_of.get(uid, -1) for uid in uids]),
        array("q", [amount or 0 for amount in amounts]),
        array("B", [amount is not None for amount in amounts]),
    )


def order_by_excess(
    usage: Integers,
    known: Integers,
    request: Integers,
    fraction: Integers | None,
    priority: Integers,
    above_zero: bool = False,
) -> array[int]:
    """Order by memory and disk: pods without stats first, then those above their request, then lower
    priority, then the larger excess of usage over request; equal pods keep their order.

    usage, request int64[n] (same unit, not negative); known uint8[n], 0 = no stats; fraction int32[n] or
    None: by how many billionths `request` was rounded up; priority int32[n]; with `above_zero` (inodes)
    "above their request" means more than none. Returns int32[n]: positions in order of eviction.
    """

    def key(position: int) -> tuple[bool, bool, int, int]:
        # `helpers.go` puts a pod without stats before one with stats in every comparison.
        if not known[position]:
            return (False, False, int(priority[position]), 0)
        whole = int(usage[position]) - int(request[position])
        excess = whole * 10**9 + (int(fraction[position]) if fraction is not None else 0)
        above = int(usage[position]) if above_zero else excess
        return (True, above <= 0, int(priority[position]), -excess)

    return array("i", sorted(range(len(usage)), key=key))


def order_by_count(count: Integers, known: Integers, priority: Integers) -> array[int]:
    """Order by process ids: lower priority first, within it pods without stats, then the larger count.

    Arguments and result as in `order_by_excess`.
    """

    # rankPIDPressure has no step for requests: pods do not request process ids.
    def key(position: int) -> tuple[int, bool, int]:
        if not known[position]:
            return (int(priority[position]), False, 0)
        return (int(priority[position]), True, -int(count[position]))

    return array("i", sorted(range(len(count)), key=key))
