"""Find faults among a node's cgroup values: pods that get less than they should although all formulas were
followed.

CPU under full contention is divided by weight, level by level: first among the Guaranteed pods and the
Burstable and BestEffort levels, then among the pods of a level. This gives the CPU that each pod really
gets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan.answers.answer import Rows
from engine.tables import BEST_EFFORT, BURSTABLE, GUARANTEED

TOLERANCE = 0.02


@dataclass(frozen=True)
class NodeShares:
    """Hold one node's pods: class, weight (or shares), milli-CPU requested, memory used in bytes (-1
    unknown); and the levels' weights and memory limits (None: not limited).
    """

    cpu_milli: int
    qos: NDArray[np.uint8]
    weight: NDArray[np.int64]
    request: NDArray[np.int64]
    usage: NDArray[np.int64]
    burstable_weight: int
    best_effort_weight: int
    burstable_limit: int | None
    best_effort_limit: int | None


def contended(shares: NodeShares) -> NDArray[np.float64]:
    """Return float64[pods]: milli-CPU of each pod when all pods want as much as they can get."""
    got = np.zeros(len(shares.qos), np.float64)
    guaranteed = shares.qos == GUARANTEED
    levels = ((BURSTABLE, shares.burstable_weight), (BEST_EFFORT, shares.best_effort_weight))
    present = [(level, weight) for level, weight in levels if (shares.qos == level).any()]
    total = float(shares.weight[guaranteed].sum()) + sum(weight for _, weight in present)
    if total <= 0:
        return got
    got[guaranteed] = shares.weight[guaranteed] / total * shares.cpu_milli
    for level, weight in present:
        mine = shares.qos == level
        inside = float(shares.weight[mine].sum())
        if inside > 0:
            got[mine] = shares.weight[mine] / inside * weight / total * shares.cpu_milli
    return got


def lint_node(rows: Rows, node: int, shares: NodeShares, *, mixed: bool) -> None:
    """Return rows of decision `lint`: the object gives the place, the reason the fault, the
    amount its size.
    """
    got = contended(shares)
    if 0 < shares.request.sum() <= shares.cpu_milli:
        missing = shares.request - got
        short = missing > np.maximum(shares.request * TOLERANCE, 1.0)
        for level, name in ((GUARANTEED, "Guaranteed"), (BURSTABLE, "Burstable")):
            mine = short & (shares.qos == level)
            if mine.any():
                reason = f"{name} pods get less CPU than they request when all contend"
                rows.add(
                    node, "lint", f"{int(mine.sum())} pods", reason, int(missing[mine].sum()), "milli-CPU"
                )
    inverted = inversions(shares.request, got)
    if inverted:
        reason = "a pod that requests more CPU gets less than one that requests half of it"
        rows.add(node, "lint", f"{inverted} pods", reason, inverted, "pods")
    if mixed:
        reason = "pods and containers use different cpu.weight formulas"
        rows.add(node, "lint", f"{len(got)} pods", reason, len(got), "pods")
    for name, limit, level in (
        ("kubepods/burstable", shares.burstable_limit, BURSTABLE),
        ("kubepods/besteffort", shares.best_effort_limit, BEST_EFFORT),
    ):
        if limit is None:
            continue
        if limit <= 0:
            rows.add(node, "lint", name, "the reservation leaves this level no memory", limit, "bytes")
            continue
        mine = (shares.qos == level) & (shares.usage > 0)
        used = int(shares.usage[mine].sum())
        if used > limit:
            rows.add(node, "lint", name, "the level uses more memory than its limit", used - limit, "bytes")


def inversions(request: NDArray[np.int64], got: NDArray[np.float64]) -> int:
    """Return pods that get less than some pod that requests at most half as much."""
    asking = request > 0
    request, got = request[asking], got[asking]
    if not len(request):
        return 0
    order = np.argsort(request, kind="stable")
    ascending, best = request[order], np.maximum.accumulate(got[order])
    below = np.searchsorted(ascending, request // 2, side="right")
    return int(((below > 0) & (got < best[np.maximum(below - 1, 0)] - 1.0)).sum())
