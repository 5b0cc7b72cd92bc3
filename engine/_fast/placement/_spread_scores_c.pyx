"""Compiled choice of nodes by score: one pass where the twin makes several. See `_spread_scores_py.py`."""

from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np

cdef int64_t FAR = 1 << 60  # further than any two scores are apart


def seen_cells(const int32_t[::1] cell, const uint8_t[::1] nodes, Py_ssize_t cells):
    cdef Py_ssize_t node, left = cells
    cdef int32_t number
    found = np.zeros(cells, bool)
    cdef uint8_t[::1] seen = found.view(np.uint8)
    if nodes.shape[0] != cell.shape[0]:
        raise ValueError("expected a cell for each node")
    with nogil:
        for node in range(cell.shape[0]):
            number = cell[node]
            if nodes[node] and 0 <= number < cells and not seen[number]:
                seen[number] = 1
                left -= 1
                if not left:
                    break
    return found


def best_nodes(
    const int64_t[::1] total, const uint8_t[::1] nodes, const int32_t[::1] cell, const int64_t[::1] score
):
    cdef Py_ssize_t size = total.shape[0], cells = score.shape[0], node, count = 0
    cdef int64_t most = -FAR // 2, mine
    cdef bint known = True
    if nodes.shape[0] != size or cell.shape[0] != size:
        raise ValueError("expected a total and a cell for each node")
    found = np.empty(size, np.int64)
    cdef int64_t[::1] best = found
    with nogil:
        for node in range(size):
            if not 0 <= cell[node] < cells:
                known = False
                break
            # Which nodes take the pod follows no pattern, so a branch on it would be guessed wrongly each
            # third time, which takes longer than the rest of the pass.
            mine = total[node] + score[cell[node]] - FAR * (nodes[node] == 0)
            if mine < most:
                continue
            if mine > most:
                most = mine
                count = 0
            best[count] = node
            count += 1
    if not known:
        raise ValueError("expected a score for each cell")
    return found[:count].copy()
