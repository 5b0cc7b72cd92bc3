"""Sum the amounts of the pods on each node, and score nodes by what is requested on them.

The scores are those of NodeResourcesFit by least allocated and of NodeResourcesBalancedAllocation of the
v1.36 scheduler, for milli-CPU and bytes of memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST: Final = 100
Values = NDArray[np.int64]


def sums_on_nodes(template: NDArray[np.int32], offsets: Values, amounts: Values) -> Values:
    """Return int64[kinds, nodes]: the sum of each kind of amount over the pods of a node.

    The pods of node i are `offsets[i]` to `offsets[i + 1]`; `template` numbers the row of `amounts`,
    int64[templates, kinds], of each pod.
    """
    sums = np.zeros((amounts.shape[1], len(offsets) - 1), np.int64)
    with_pods = np.flatnonzero(np.diff(offsets))
    if len(with_pods):
        for row, amount in zip(sums, amounts.T, strict=True):
            row[with_pods] = np.add.reduceat(amount[template[: offsets[-1]]], offsets[with_pods])
    return sums


def scores_by_amounts(
    total: Values, free: Values, allocatable: Values, used: Values, request: Values, assumed: Values,
    nodes: Values | None,
) -> Values:  # fmt: skip
    """Return int64[nodes]: how empty a node is, 0 to 100, plus how a pod changes its balance, 0 to 100.

    `total` and `free`, int64[2 or more, all nodes], hold what may be requested and what is left of it;
    `allocatable` and `used`, int64[2, all nodes], the same with assumed requests. A pod asks for `request`
    and `assumed`, int64[2]. `nodes` are the ones to score, None for all.
    """
    chosen = slice(None) if nodes is None else nodes
    total, free = total[:2, chosen], free[:2, chosen]
    allocatable = allocatable[:, chosen]
    left = allocatable - used[:, chosen] - assumed[:, None]
    each = np.maximum(left, 0) * MOST // np.maximum(allocatable, 1)
    empty: Values = each.sum(axis=0) // np.maximum((allocatable > 0).sum(axis=0), 1)
    # The scheduler skips the balance for pods without requests, which would otherwise gather on few nodes
    # (Kubernetes issue 129138).
    if not request[:2].any():
        return empty
    before = total - free
    change = _balance(before + request[:2, None], total) - _balance(before, total)
    return empty + MOST // 2 + (MOST // 2 + change) // 2


def _balance(used: Values, total: Values) -> Values:
    """Return 100 for equal shares of CPU and memory, less the further apart they are."""
    shares = np.minimum(used / np.maximum(total, 1), 1.0)
    apart = np.where((total > 0).all(axis=0), np.abs(shares[0] - shares[1]) / 2, 0.0)
    found: Values = ((1 - apart) * MOST).astype(np.int64)
    return found
