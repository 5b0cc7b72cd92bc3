"""Compiled sums and scores of nodes: one pass without arrays in between. See `_node_amounts_py.py`."""

from libc.math cimport fabs
from libc.stdint cimport int32_t, int64_t

import numpy as np

cdef int64_t MOST = 100


def sums_on_nodes(const int32_t[::1] template, const int64_t[::1] offsets, const int64_t[:, ::1] amounts):
    cdef Py_ssize_t templates = amounts.shape[0], kinds = amounts.shape[1], count = offsets.shape[0] - 1
    cdef Py_ssize_t node, pod, kind
    cdef bint known = True
    found = np.zeros((kinds, max(count, 0)), np.int64)
    cdef int64_t[:, ::1] sums = found
    if count > 0 and (offsets[0] < 0 or offsets[count] > template.shape[0]):
        raise ValueError("expected a template for each pod")
    with nogil:
        for node in range(count):
            if offsets[node] > offsets[node + 1]:
                known = False
                break
            for pod in range(offsets[node], offsets[node + 1]):
                if not 0 <= template[pod] < templates:
                    known = False
                    break
                for kind in range(kinds):
                    sums[kind, node] += amounts[template[pod], kind]
            if not known:
                break
    if not known:
        raise ValueError("expected ascending offsets, and templates with amounts")
    return found


cdef inline int64_t balance(
    int64_t first, int64_t second, int64_t of_first, int64_t of_second
) noexcept nogil:
    if of_first <= 0 or of_second <= 0:
        return MOST
    cdef double apart = (
        min(<double>first / <double>of_first, 1.0) - min(<double>second / <double>of_second, 1.0)
    )
    return <int64_t>((1 - fabs(apart) / 2) * MOST)


def scores_by_amounts(
    const int64_t[:, ::1] total, const int64_t[:, ::1] free, const int64_t[:, ::1] allocatable,
    const int64_t[:, ::1] used, const int64_t[::1] request, const int64_t[::1] assumed,
    const int64_t[::1] nodes,
):
    cdef Py_ssize_t size = total.shape[1], count = size if nodes is None else nodes.shape[0]
    cdef Py_ssize_t place, node, kind, named
    cdef int64_t left, empty, change
    cdef int64_t[2] before
    cdef bint balanced, known = True
    if request.shape[0] < 2 or assumed.shape[0] < 2:
        raise ValueError("expected milli-CPU and bytes of memory")
    if (
        min(total.shape[0], free.shape[0], allocatable.shape[0], used.shape[0]) < 2
        or not size == free.shape[1] == allocatable.shape[1] == used.shape[1]
    ):
        raise ValueError("expected amounts of CPU and memory for each node")
    balanced = request[0] != 0 or request[1] != 0
    found = np.empty(count, np.int64)
    cdef int64_t[::1] scores = found
    with nogil:
        for place in range(count):
            node = place if nodes is None else nodes[place]
            if not 0 <= node < size:
                known = False
                break
            empty = named = 0
            for kind in range(2):
                if allocatable[kind, node] > 0:
                    named += 1
                    left = allocatable[kind, node] - used[kind, node] - assumed[kind]
                    if left > 0:
                        empty += left * MOST // allocatable[kind, node]
            scores[place] = empty // max(named, 1)
            if balanced:
                for kind in range(2):
                    before[kind] = total[kind, node] - free[kind, node]
                change = balance(
                    before[0] + request[0], before[1] + request[1], total[0, node], total[1, node]
                ) - balance(before[0], before[1], total[0, node], total[1, node])
                # A division would round towards 0.
                scores[place] += MOST // 2 + ((MOST // 2 + change) >> 1)
    if not known:
        raise ValueError("expected numbers of nodes")
    return found
