"""Compiled NUMA hint kernels; the rules are in `_topology_py`.

`merge` does not walk the product of the resources' hints, which grows as (2^nodes)^resources. Fitness
is a total order on (mask, preferred), so only the *set* of reachable pairs matters:

- (m, preferred) is reachable exactly if every resource has the preferred hint m or no opinion. That
  is one pass over the masks, and any such pair beats everything that is not preferred.
- Otherwise the masks reachable by intersection are wanted. Write F(x) for the number of hints of a
  resource that contain x. The number of ways to reach an intersection that contains x is the product
  of the F(x), so the ways to reach exactly x follow by Moebius inversion over supersets. Counts are
  exact: families are multiplied only while their number of ways stays below 2^64 (inversion modulo
  2^64 is then exact), and turned back into yes or no before more are multiplied in.

Time is O(resources * nodes * 2^nodes), memory O(2^nodes). Beyond MAX_NODES see
`engine.topologymanager.search`.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from engine._fast.devices import MAX_NODES

cdef extern from "subset_sums.h" nogil:
    void kb_subset_sums(int32_t *f, int nodes)
    int kb_smallest(const int32_t *inside, int64_t touching, int64_t request, int nodes)
    int kb_smallest_flagged(const uint8_t *flags, int nodes)
    void kb_flag(
        uint8_t *flags, const int32_t *available, const int32_t *reusable,
        int64_t touching, int64_t request, int smallest, int nodes,
    )
    void kb_superset_sums(uint64_t *f, int nodes)
    void kb_superset_differences(uint64_t *f, int nodes)
    uint64_t kb_best_reached(const uint64_t *reach, int target, int nodes)
    void kb_multiply(uint64_t *f, const uint64_t *g, size_t size)
    int __builtin_popcountll(unsigned long long x)
    int __builtin_ctzll(unsigned long long x)

cdef enum:
    ORDINARY = 1
    PREFERRED = 2
    NO_MASK = -1
    ANY_NODE = 1


def generate(
    int nodes,
    const uint64_t[::1] groups,
    const int64_t[::1] everything,
    const int64_t[::1] available,
    const int64_t[::1] reusable,
    int64_t request,
):
    if nodes > MAX_NODES:
        raise ValueError(f"{nodes} NUMA nodes; at most {MAX_NODES}")
    cdef size_t size = <size_t> 1 << nodes, full = size - 1, mask, within = 0
    cdef int smallest
    cdef int64_t all_reusable = 0, touch_all = 0, touch_available = 0, touch_reusable = 0
    cdef Py_ssize_t i
    flags_array = np.zeros(size, np.uint8)
    inside_array = np.zeros((3, size), np.int32)
    cdef uint8_t[::1] flags = flags_array
    cdef int32_t[:, ::1] inside = inside_array
    if not groups.shape[0] == everything.shape[0] == available.shape[0] == reusable.shape[0]:
        raise ValueError("one count per group")
    with nogil:
        for i in range(groups.shape[0]):
            mask = groups[i] & full
            all_reusable += reusable[i]
            if everything[i]:
                within |= mask
            if mask:
                inside[0, mask] += <int32_t> everything[i]
                inside[1, mask] += <int32_t> available[i]
                inside[2, mask] += <int32_t> reusable[i]
                touch_all += everything[i]
                touch_available += available[i]
                touch_reusable += reusable[i]
        if touch_reusable == all_reusable:
            for i in range(3):
                if i < 2 or all_reusable:
                    kb_subset_sums(&inside[i, 0], nodes)
            smallest = kb_smallest(&inside[0, 0], touch_all, request, nodes)
            if within and __builtin_popcountll(within) < smallest:
                smallest = __builtin_popcountll(within)
            kb_flag(
                &flags[0], &inside[1, 0], &inside[2, 0],
                touch_reusable + touch_available, request, smallest, nodes,
            )
            if within and within != full:
                for mask in range(1, size):
                    if mask & ~within:
                        flags[mask] = 0
    return flags_array


cdef int64_t _distance(uint64_t mask, const int64_t[:, ::1] distances) noexcept nogil:
    cdef int64_t total = 0
    cdef uint64_t a = mask, b
    while a:
        b = mask
        while b:
            total += distances[__builtin_ctzll(a), __builtin_ctzll(b)]
            b &= b - 1
        a &= a - 1
    return total


cdef bint _fitter(uint64_t new, uint64_t old, bint closest, const int64_t[:, ::1] distances) noexcept nogil:
    """Return whether `new` is fitter than `old`."""
    cdef int64_t far_new, far_old
    cdef int size_new = __builtin_popcountll(new), size_old = __builtin_popcountll(old)
    if size_new != size_old:
        return size_new < size_old
    if closest:
        far_new = _distance(new, distances)
        far_old = _distance(old, distances)
        if far_new != far_old:
            return far_new < far_old
    return new < old


def merge(int nodes, families, distances_array):
    if nodes > MAX_NODES:
        raise ValueError(f"{nodes} NUMA nodes; at most {MAX_NODES}")
    cdef size_t size = <size_t> 1 << nodes, mask
    cdef uint64_t full = size - 1, best = 0
    cdef bint closest = distances_array is not None
    cdef const int64_t[:, ::1] distances = (
        distances_array if closest else np.zeros((nodes, nodes), np.int64)
    )
    cdef int target = 0, smallest
    cdef bint held, opinionated = False, dead = False
    cdef const uint8_t[::1] flags
    cdef uint64_t[::1] ways, reach
    agreed_array = np.ones(size, np.uint8)
    cdef uint8_t[::1] agreed = agreed_array
    if closest and distances_array.shape != (nodes, nodes):
        raise ValueError(f"distances of shape {distances_array.shape} for {nodes} nodes")

    for array, opinion in families:
        if array.shape != (size,):
            raise ValueError(f"hints of shape {array.shape} for {nodes} nodes")
        flags = array
        smallest = kb_smallest_flagged(&flags[0], nodes)
        held = smallest <= nodes
        if held:
            target = max(target, smallest)
        if not held and opinion == NO_MASK:
            dead = True
        if opinion != ANY_NODE:
            opinionated = True
            with nogil:
                for mask in range(size):
                    agreed[mask] &= flags[mask] >> 1
    if dead:
        return full, False
    if opinionated:
        with nogil:
            for mask in range(1, size):
                if agreed[mask] and (best == 0 or _fitter(mask, best, closest, distances)):
                    best = mask
    else:
        best = _all_agree(families, full, closest, distances)
    if best:
        return best, True

    reach_array = None
    bound = 1
    for array, opinion in families:
        members = (array != 0)
        if opinion != NO_MASK:
            members[full] = True
        weight = int(np.count_nonzero(members))
        ways_array = members.astype(np.uint64)
        ways = ways_array
        kb_superset_sums(&ways[0], nodes)
        if reach_array is None:
            reach_array, reach, bound = ways_array, ways, weight
            continue
        if bound * weight >= 2**64:
            kb_superset_differences(&reach[0], nodes)
            np.minimum(reach_array, 1, out=reach_array)
            bound = int(np.count_nonzero(reach_array))
            kb_superset_sums(&reach[0], nodes)
        kb_multiply(&reach[0], &ways[0], size)
        bound *= weight
    if reach_array is None:
        return full, True
    kb_superset_differences(&reach[0], nodes)
    with nogil:
        best = kb_best_reached(&reach[0], target, nodes)
        smallest = __builtin_popcountll(best)
        if closest and best:
            for mask in range(best + 1, size):
                if (
                    reach[mask]
                    and __builtin_popcountll(mask) == smallest
                    and _fitter(mask, best, True, distances)
                ):
                    best = mask
    return (best or full), False


cdef uint64_t _all_agree(families, uint64_t full, bint closest, const int64_t[:, ::1] distances):
    """Merge hints of resources that all accept any node: all nodes, or a preferred hint of one of them."""
    cdef uint64_t best = full
    for array, _ in families:
        for mask in np.flatnonzero(array & PREFERRED).tolist():
            if mask and _fitter(mask, best, closest, distances):
                best = mask
    return best
