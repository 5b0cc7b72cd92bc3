"""Choose the nodes with the highest score, part of which depends only on the cell that a node is in.

A cell is a set of nodes that are in the same domain of every topology key by which a pod spreads, and hold
equally many of its replicas. There are few of them, so what PodTopologySpread of the v1.36 scheduler adds is
computed for each cell, not for each node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def seen_cells(cell: NDArray[np.int32], nodes: NDArray[np.uint8], cells: int) -> NDArray[np.bool_]:
    """Return bool[cells]: the cells that some of the `nodes`, uint8[all nodes], are in.

    `cell` numbers the cell of each node from 0; nodes with other numbers count for none.
    """
    found = np.zeros(cells, bool)
    mine = cell[nodes != 0]
    found[mine[(mine >= 0) & (mine < cells)]] = True
    return found


def best_nodes(
    total: NDArray[np.int16],
    nodes: NDArray[np.uint8],
    cell: NDArray[np.int32] | None,
    score: NDArray[np.int16] | None,
) -> NDArray[np.int64]:
    """Return those of the `nodes`, uint8[all nodes], whose `total` plus the `score` of their cell is highest,
    in ascending order. Without cells the total alone counts.

    A sum must be above -32,768 and below 32,768: the scheduler's scores add up to a few thousand at most.
    """
    there = np.flatnonzero(nodes)
    sums = total[there]
    if cell is not None and score is not None:
        sums = sums + score[cell[there]]
    found: NDArray[np.int64] = there[sums == sums.max()] if len(there) else there
    return found
