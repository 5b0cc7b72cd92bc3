"""Fit of pods on nodes, over columns. The rule is in `_predicates_py.py`."""

import numpy as np

from cython.parallel cimport prange
from libc.stdint cimport INT64_MAX, int64_t, uint8_t

cdef extern from "threads.h" nogil:
    int kb_threads(int wanted)

cdef enum:
    BLOCK = 512  # nodes a thread takes at a time: a few pages of each column


cdef inline int64_t missing(int64_t wanted, int64_t overhead, uint8_t droppable, int64_t used,
                            int64_t allocatable) noexcept nogil:
    cdef int64_t amount = overhead if droppable and allocatable < 0 else wanted
    cdef int64_t room = (allocatable if allocatable > 0 else 0) - used
    if amount <= 0 or amount <= room:
        return 0
    if room < 0 and amount > INT64_MAX + room:
        return INT64_MAX
    return amount - room


def request_sums(const int64_t[:, ::1] requests, const int64_t[::1] offsets, int threads=0):
    cdef int64_t resources = requests.shape[0], nodes = offsets.shape[0] - 1, node, resource, row, total
    cdef int workers = kb_threads(threads)
    for node in range(nodes):
        if not 0 <= offsets[node] <= offsets[node + 1] <= requests.shape[1]:
            raise ValueError("offsets must rise and stay within the rows")
    sums = np.zeros((resources, max(nodes, 0)), np.int64)
    cdef int64_t[:, ::1] out = sums
    for node in prange(nodes, nogil=True, schedule="static", num_threads=workers):
        for resource in range(resources):
            total = 0
            for row in range(offsets[node], offsets[node + 1]):
                if total < 0 or requests[resource, row] > INT64_MAX - total:
                    total = -1
                else:
                    total = total + requests[resource, row]
            out[resource, node] = total
    for resource in range(resources):
        for node in range(nodes):
            if out[resource, node] < 0:
                raise OverflowError(f"the sum of resource {resource} on node {node} exceeds 64 bits")
    return sums


def short_on_each_node(const int64_t[::1] wanted, const int64_t[::1] overhead, const uint8_t[::1] droppable,
                       const int64_t[:, ::1] used, const int64_t[::1] pods,
                       const int64_t[:, ::1] allocatable, const int64_t[::1] pod_limit, int threads=0):
    cdef int64_t resources = wanted.shape[0], nodes = pods.shape[0], node, resource, block
    cdef int workers = kb_threads(threads)
    if (overhead.shape[0] != resources or droppable.shape[0] != resources or used.shape[0] != resources
            or allocatable.shape[0] != resources or used.shape[1] != nodes or allocatable.shape[1] != nodes
            or pod_limit.shape[0] != nodes):
        raise ValueError(f"expected {resources} resources and {nodes} nodes in every array")
    shortage = np.zeros((nodes, resources + 1), np.int64)
    cdef int64_t[:, ::1] out = shortage
    for block in prange((nodes + BLOCK - 1) // BLOCK, nogil=True, schedule="static", num_threads=workers):
        for node in range(block * BLOCK, min(nodes, (block + 1) * BLOCK)):
            out[node, 0] = max(0, pods[node] + 1 - pod_limit[node])
            for resource in range(resources):
                out[node, resource + 1] = missing(
                    wanted[resource], overhead[resource], droppable[resource], used[resource, node],
                    allocatable[resource, node])
    return shortage
