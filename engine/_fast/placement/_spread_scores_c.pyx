"""Compiled choice of nodes by score, in passes that the compiler turns into vector instructions. See
`_spread_scores_py.py`.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

import numpy as np

cdef int16_t NONE = -32768  # the score of a node that does not take the pod
cdef enum:
    BLOCK = 64  # nodes that are compared one by one if one of them is among the best


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


cdef bint add_scores(
    const int16_t* total, const uint8_t* nodes, const int32_t* cell, const int16_t* score,
    uint32_t cells, int16_t* sums, Py_ssize_t size,
) noexcept nogil:
    """Write the score of each node; return whether every node has a cell."""
    cdef Py_ssize_t node
    cdef int16_t there
    cdef int32_t beyond = 0
    if cell is NULL:
        for node in range(size):
            there = -<int16_t>(nodes[node] != 0)
            sums[node] = (total[node] & there) | (NONE & ~there)
        return True
    # A pass of its own: with a way out, the other loop would look at one node at a time.
    for node in range(size):
        beyond |= <uint32_t>cell[node] >= cells
    if beyond:
        return False
    for node in range(size):
        there = -<int16_t>(nodes[node] != 0)
        sums[node] = ((total[node] + score[cell[node]]) & there) | (NONE & ~there)
    return True


cdef int16_t greatest(const int16_t* sums, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t node
    cdef int16_t most = NONE
    for node in range(size):
        most = sums[node] if sums[node] > most else most
    return most


cdef Py_ssize_t equals(const int16_t* sums, int16_t most, Py_ssize_t size) noexcept nogil:
    """Return how many of up to BLOCK nodes have a score."""
    cdef Py_ssize_t node
    cdef int16_t count = 0
    for node in range(size):
        count += sums[node] == most
    return count


def best_nodes(
    const int16_t[::1] total, const uint8_t[::1] nodes, const int32_t[::1] cell, const int16_t[::1] score
):
    cdef Py_ssize_t size = total.shape[0], blocks = (size + BLOCK - 1) // BLOCK, block, first, node
    cdef Py_ssize_t count = 0, length
    cdef int16_t most
    cdef bint known
    if nodes.shape[0] != size or (cell is not None and (cell.shape[0] != size or score is None)):
        raise ValueError("expected a total and a cell for each node")
    if not size:
        return np.empty(0, np.int64)
    all_sums = np.empty(size, np.int16)
    cdef int16_t[::1] sums = all_sums
    with nogil:
        if cell is None:
            known = add_scores(&total[0], &nodes[0], NULL, NULL, 0, &sums[0], size)
        elif score.shape[0]:
            known = add_scores(
                &total[0], &nodes[0], &cell[0], &score[0], <uint32_t>score.shape[0], &sums[0],
                size,
            )
        else:
            known = False
        if known:
            most = greatest(&sums[0], size)
            if most != NONE:
                for block in range(blocks):
                    first = block * BLOCK
                    count += equals(&sums[first], most, min(<Py_ssize_t>BLOCK, size - first))
    if not known:
        raise ValueError("expected a score for each cell")
    found = np.empty(count, np.int64)
    cdef int64_t[::1] best = found
    if not count:
        return found
    length, count = count, 0
    with nogil:
        for block in range(blocks):
            first = block * BLOCK
            if not equals(&sums[first], most, min(<Py_ssize_t>BLOCK, size - first)):
                continue
            for node in range(first, min(first + BLOCK, size)):
                if sums[node] == most:
                    best[count] = node
                    count += 1
            if count == length:
                break
    return found
