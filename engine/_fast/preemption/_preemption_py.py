"""Which pods die for a critical pod; the rule, in plain Python.

Source: kubelet v1.36 `preemption/preemption.go` (getPodsToPreempt) and `qos` (sortPodsByQOS).

Arguments that every form shares:

    ranking   int64[R, N]  requests per resource id and row, not negative
    qos       uint8[N]     0 BestEffort, 1 Burstable, 2 Guaranteed
    flags     uint8[N]     bits LIVE 1, CRITICAL 2, HAS_PRIORITY 4
    priority  int32[N]
    critical, preemptor_priority (None: it has none)
    resources int32[k]     ids of the short resources in the order of the failures; -1 is `pods`, of
                           which every pod has one; ids 0 and 1 are cpu and memory, which break ties
    needs     int64[k]     how much of each must be freed; 0 or less is nothing
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIVE, CRITICAL, HAS_PRIORITY = 1, 2, 4
CPU, MEMORY, PODS = 0, 1, -1

Needs = list[tuple[int, int]]
Cells = Any
"""A column as an array of NumPy or as the memory of a table."""


def victims(
    ranking: Cells,
    qos: Cells,
    flags: Cells,
    priority: Cells,
    rows: array[int] | NDArray[np.int32] | None,
    critical: bool,
    preemptor_priority: int | None,
    resources: array[int] | NDArray[np.int32],
    needs: array[int] | NDArray[np.int64],
    work: NDArray[np.int64] | None = None,
) -> tuple[array[int], array[int]]:
    """Return victims (int32, in the kubelet's order) and what stays short (int64[k]).

    `rows` int32 are the node's pods in list order, None all rows. If anything stays short even without all
    preemptable pods, there are no victims. `work`, int64[1], counts the distances computed.
    """
    order = range(len(flags)) if rows is None else rows.tolist()
    classes: list[list[int]] = [[], [], []]
    for row in order:
        if flags[row] & LIVE and _preemptable(
            critical, preemptor_priority, int(flags[row]), int(priority[row])
        ):
            classes[int(qos[row])].append(row)
    best_effort, burstable, guaranteed = classes
    wanted: Needs = list(zip(resources.tolist(), needs.tolist(), strict=True))
    short = [
        max(0, need - sum(_amount(ranking, id, row) for group in classes for row in group))
        for id, need in wanted
    ]
    if any(short):
        return array("i"), array("q", short)

    def choose(group: list[int], without: Sequence[int]) -> list[int]:
        return _by_distance(ranking, group, _subtract(ranking, wanted, without), work)

    from_guaranteed = choose(guaranteed, [*best_effort, *burstable])
    from_burstable = choose(burstable, [*best_effort, *from_guaranteed])
    from_best_effort = choose(best_effort, [*from_burstable, *from_guaranteed])
    return array("i", from_best_effort + from_burstable + from_guaranteed), array("q", short)


def victims_by_node(
    ranking: NDArray[np.int64],
    qos: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    priority: NDArray[np.int32],
    offsets: NDArray[np.int64],
    critical: bool,
    preemptor_priority: int | None,
    resources: NDArray[np.int32],
    needs: NDArray[np.int64],
    threads: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Compute the same for many nodes: node i has rows `offsets[i]` to `offsets[i + 1]` and `needs[i]`
    (int64[nodes, k]).

    Returns victim offsets int64[nodes + 1], victim rows int32 and what stays short int64[nodes, k].
    `threads` 0 uses every core.
    """
    chosen: list[NDArray[np.int32]] = []
    short = np.zeros(needs.shape, np.int64)
    victim_offsets = np.zeros(len(offsets), np.int64)
    for node in range(len(offsets) - 1):
        rows = np.arange(offsets[node], offsets[node + 1], dtype=np.int32)
        found, short[node] = victims(
            ranking, qos, flags, priority, rows, critical, preemptor_priority, resources, needs[node]
        )
        chosen.append(np.asarray(found))
        victim_offsets[node + 1] = victim_offsets[node] + len(found)
    return victim_offsets, np.concatenate(chosen or [np.empty(0, np.int32)]), short


def _preemptable(critical: bool, ours: int | None, flags: int, theirs: int) -> bool:
    if critical and not flags & CRITICAL:
        return True
    return ours is not None and bool(flags & HAS_PRIORITY) and ours > theirs


def _amount(ranking: Cells, id: int, row: int) -> int:
    return 1 if id == PODS else int(ranking[id, row])


def _subtract(ranking: Cells, needs: Needs, rows: Sequence[int]) -> Needs:
    """Return the remaining needs without satisfied resources."""
    left = [(id, need - sum(_amount(ranking, id, row) for row in rows)) for id, need in needs]
    return [(id, need) for id, need in left if need > 0]


def _by_distance(ranking: Cells, group: list[int], needs: Needs, work: NDArray[np.int64] | None) -> list[int]:
    """Choose greedily the pod nearest to the remaining needs, until nothing remains.

    Among equally near ones, less memory wins, then less cpu, then the later in the list; the last in the
    list moves to the chosen one's place.
    """
    group = list(group)
    chosen: list[int] = []
    while needs:
        best = min(
            range(len(group)),
            key=lambda place: (
                _distance(ranking, group[place], needs),
                _amount(ranking, MEMORY, group[place]),
                _amount(ranking, CPU, group[place]),
                -place,
            ),
        )
        if work is not None:
            work[0] += len(group)
        needs = _subtract(ranking, needs, [group[best]])
        chosen.append(group[best])
        group[best] = group[-1]
        group.pop()
    return chosen


def _distance(ranking: NDArray[np.int64], row: int, needs: Needs) -> float:
    """Return the sum of squared shares of each need that would remain; in doubles, in order."""
    distance = 0.0
    for id, need in needs:
        rest = float(need - _amount(ranking, id, row))
        if rest > 0:
            share = rest / float(need)
            distance += share * share
    return distance
