"""Find pods that get less CPU or memory than they should, although every cgroup value follows its formula.

When all pods contend, the kernel divides CPU by weight, level by level: first among the Guaranteed pods and
the cgroups of Burstable and BestEffort pods, then among the pods of each cgroup. From this follows the CPU
that each pod gets, which is compared with its request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.plan.answers.answer import Rows
from engine.tables import BEST_EFFORT, BURSTABLE, GUARANTEED

TOLERANCE = 0.02
"""Share of its request that a pod may miss without a fault: weights are integers, so division is uneven."""


@dataclass(frozen=True)
class NodeShares:
    """Hold the cgroup values of one node and its pods.

    Per pod: `qos` class, cpu `weight` (or shares), `request` in milli-CPU, and memory `usage` in bytes, -1
    unknown. Per level: weights, and memory limits in bytes, None without a limit. `cpu_milli` is the
    capacity.
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
    """Return float64[pods]: the milli-CPU of each pod when every pod uses as much as it can get."""
    got = np.zeros(len(shares.qos), np.float64)
    guaranteed = shares.qos == GUARANTEED
    levels = ((BURSTABLE, shares.burstable_weight), (BEST_EFFORT, shares.best_effort_weight))
    # The cgroup of a level without pods has no task, and takes no part in the division.
    present = [(level, weight) for level, weight in levels if (shares.qos == level).any()]
    total = float(shares.weight[guaranteed].sum()) + sum(weight for _, weight in present)
    if total <= 0:
        return got
    got[guaranteed] = shares.weight[guaranteed] / total * shares.cpu_milli
    for level, weight in present:
        of_level = shares.qos == level
        inside = float(shares.weight[of_level].sum())
        if inside > 0:
            got[of_level] = shares.weight[of_level] / inside * weight / total * shares.cpu_milli
    return got


def lint_node(rows: Rows, node: int, shares: NodeShares, *, mixed: bool) -> None:
    """Add rows with the decision `lint`: the object is a cgroup or a number of pods, the reason is the fault,
    and the amount is its size. `mixed` says that pods and containers have different cpu.weight formulas.
    """
    got = contended(shares)
    # With more requested than there is, each pod gets less than its request, whatever the weights are.
    if 0 < shares.request.sum() <= shares.cpu_milli:
        missing = shares.request - got
        short = missing > np.maximum(shares.request * TOLERANCE, 1.0)
        for level, name in ((GUARANTEED, "Guaranteed"), (BURSTABLE, "Burstable")):
            of_level = short & (shares.qos == level)
            if of_level.any():
                reason = f"{name} pods get less CPU than they request when all contend"
                rows.add(
                    node,
                    "lint",
                    f"{int(of_level.sum())} pods",
                    reason,
                    int(missing[of_level].sum()),
                    "milli-CPU",
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
        of_level = (shares.qos == level) & (shares.usage > 0)
        used = int(shares.usage[of_level].sum())
        if used > limit:
            rows.add(node, "lint", name, "the level uses more memory than its limit", used - limit, "bytes")


def inversions(request: NDArray[np.int64], got: NDArray[np.float64]) -> int:
    """Return how many pods get less milli-CPU than some pod that requests at most half as much."""
    asking = request > 0
    request, got = request[asking], got[asking]
    if not len(request):
        return 0
    order = np.argsort(request, kind="stable")
    # `best[i]` is the most that any of the i + 1 smallest requests gets.
    ascending, best = request[order], np.maximum.accumulate(got[order])
    below = np.searchsorted(ascending, request // 2, side="right")
    return int(((below > 0) & (got < best[np.maximum(below - 1, 0)] - 1.0)).sum())
