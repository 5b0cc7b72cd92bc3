"""Score all nodes at once by how evenly the replicas of a pod would spread.

Source: PodTopologySpread of the v1.36 scheduler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST = 100


def domains_among(domain: NDArray[np.int32], nodes: NDArray[np.int64], most: int) -> int:
    """Return how many domains of a topology key these nodes are in, of `most` that there are.

    `domain` numbers the domain of each node from 0; -1, without the label, is a domain too.
    """
    return len(np.unique(domain[nodes]))


def add_spread(
    total: NDArray[np.int64],
    nodes: NDArray[np.int64],
    weight: int,
    base: NDArray[np.float64],
    domain: NDArray[np.int32],
    values: NDArray[np.float64],
    keyed: NDArray[np.uint8],
) -> None:
    """Add `weight` times the score by spread, 0 to 100, to the `total` of each of these nodes.

    The count of a node is its `base` plus, for each row of `domain` [keys, all nodes], the value in `values`
    [keys, domains + 1] of its domain; the last value of a row is that of nodes without the label. Counts are
    cut to integers; the fewest get 100, and all others in proportion. Nodes that are not `keyed` get nothing.
    """
    counts = base[nodes]
    for row, value in zip(domain, values, strict=True):
        counts = counts + value[row[nodes]]
    used = keyed[nodes] != 0
    whole = counts.astype(np.int64)
    if not used.any():
        return
    low, most = int(whole[used].min()), int(whole[used].max())
    scores = MOST * (most + low - whole) // most if most else np.full(len(whole), MOST)
    total += weight * np.where(used, scores, 0)
