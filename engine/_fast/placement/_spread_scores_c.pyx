"""Compiled scores by spread: two passes over the nodes where the twin has ten. See `_spread_scores_py.py`."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t

import numpy as np

cdef enum:
    MOST = 100
    FEW = 4096  # distinct counts up to which their scores are computed once: a division takes longest


cdef inline int64_t score_of(int64_t count, int64_t low, int64_t most) noexcept nogil:
    return MOST * (most + low - count) // most if most else MOST


def domains_among(const int32_t[::1] domain, const int64_t[::1] nodes, int64_t most):
    cdef Py_ssize_t place
    cdef int64_t found = 0, number
    cdef uint8_t[::1] seen = np.zeros(most + 1, np.uint8)
    for place in range(nodes.shape[0]):
        number = domain[nodes[place]] + 1
        if number > most:
            raise ValueError("expected domains that are numbered without gaps")
        if not seen[number]:
            seen[number] = 1
            found += 1
            if found == most:
                break
    return found


def add_spread(
    int64_t[::1] total,
    const int64_t[::1] nodes,
    int64_t weight,
    const double[::1] base,
    const int32_t[:, ::1] domain,
    const double[:, ::1] values,
    const uint8_t[::1] keyed,
):
    cdef Py_ssize_t size = nodes.shape[0], place, key, keys = domain.shape[0]
    cdef Py_ssize_t last = values.shape[1] - 1
    cdef int64_t low = INT64_MAX, most = INT64_MIN, node
    cdef double count
    if total.shape[0] != size or values.shape[0] != keys:
        raise ValueError("expected one total per node and one row of values per key")
    counts = np.empty(size, np.int64)
    cdef int64_t[::1] whole = counts
    with nogil:
        for place in range(size):
            node = nodes[place]
            count = base[node]
            for key in range(keys):
                count += values[key, domain[key, node] if domain[key, node] >= 0 else last]
            whole[place] = <int64_t>count
            if keyed[node]:
                low = min(low, whole[place])
                most = max(most, whole[place])
    if low > most:
        return
    cdef bint few = most - low < FEW
    scores = np.empty(most - low + 1 if few else 0, np.int64)
    cdef int64_t[::1] score = scores
    with nogil:
        for place in range(score.shape[0]):
            score[place] = weight * score_of(low + place, low, most)
        for place in range(size):
            if keyed[nodes[place]]:
                total[place] += (
                    score[whole[place] - low] if few else weight * score_of(whole[place], low, most)
                )
