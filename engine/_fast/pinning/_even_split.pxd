"""How CPUs are split evenly over NUMA nodes, for `_cpu_assignment_c`. The rule is in `_cpu_assignment_py.py`.

Inline, in a file of its own: the search knows free CPUs by node, and nothing of sets or levels.
"""

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int64_t
from libc.string cimport memcpy

cdef enum:
    MOST_TRIED = 16  # the most nodes that arrays on the stack can hold


cdef inline double rounded(double value) noexcept nogil:
    """Round to three digits, halves away from zero."""
    cdef double scaled = value * 1000
    cdef int64_t whole = <int64_t>scaled
    return <double>(whole + (scaled - whole >= 0.5)) / 1000


cdef inline double imbalance(const int *counts, const int *listed, int length) noexcept nogil:
    """Return the standard deviation of counts; it and the mean are rounded to three digits."""
    cdef int i
    cdef int64_t total = 0
    cdef double mean, deviation, squares = 0
    for i in range(length):
        total += counts[listed[i]]
    mean = rounded(<double>total / length)
    for i in range(length):
        deviation = counts[listed[i]] - mean
        squares += deviation * deviation
    return rounded(sqrt(squares / length))


cdef inline bint next_combination(int *places, int size, int length) noexcept nogil:
    """Step to the next set of `size` places among `length`, in lexicographic order; False after the last."""
    cdef int i = size - 1, j
    while i >= 0 and places[i] == length - size + i:
        i -= 1
    if i < 0:
        return False
    places[i] += 1
    for j in range(i + 1, size):
        places[j] = places[j - 1] + 1
    return True


cdef struct split:
    int chosen_count, extra_count
    int *nodes      # all nodes in order
    int *free_cpus  # by index of node
    int *left
    int *remaining
    int *chosen
    int *extra      # [nodes]: the nodes that give the rest, one group after the other


cdef inline double most_even_rest(
    split *s, const int *chosen, int size, int nodes, int64_t rest, int64_t group, int *extra,
    int *extra_count
) noexcept nogil:
    """Choose the nodes that give the rest and write them to `extra`. Returns INFINITY if they cannot."""
    cdef int able[MOST_TRIED]
    cdef int places[MOST_TRIED]
    cdef int able_count = 0, i, length
    cdef int64_t missing, before
    cdef double best = INFINITY, balance
    cdef bint more
    extra_count[0] = 0
    if not rest:
        return imbalance(s.left, s.nodes, nodes)
    for i in range(size):
        if s.left[chosen[i]] >= group:
            able[able_count] = chosen[i]
            able_count += 1
    for length in range(able_count, 0, -1):
        for i in range(length):
            places[i] = i
        more = True
        while more:
            for i in range(nodes):
                s.remaining[s.nodes[i]] = s.left[s.nodes[i]]
            missing = rest
            while missing:
                before = missing
                for i in range(length):
                    if missing and s.remaining[able[places[i]]] >= group:
                        s.remaining[able[places[i]]] -= <int>group
                        missing -= group
                if missing == before:
                    break
            if not missing:
                balance = imbalance(s.remaining, s.nodes, nodes)
                if balance < best:
                    best = balance
                    extra_count[0] = length
                    for i in range(length):
                        extra[i] = able[places[i]]
            more = next_combination(places, length, able_count)
    return best


cdef inline bint most_even_split(
    split *s, int nodes, int size, int64_t share, int64_t rest, int64_t group
) noexcept nogil:
    """Choose `size` nodes that give `share` CPUs each, and those that give the rest; False if none can."""
    cdef int places[MOST_TRIED]
    cdef int chosen[MOST_TRIED]
    cdef int extra[MOST_TRIED]
    cdef int extra_count, i
    cdef int64_t groups
    cdef double best = INFINITY, balance
    cdef bint able, more = True
    for i in range(size):
        places[i] = i
    while more and best != 0:
        groups, able = 0, True
        for i in range(size):
            chosen[i] = s.nodes[places[i]]
            groups += s.free_cpus[chosen[i]] // group
            able = able and s.free_cpus[chosen[i]] >= share
        if able and groups * group >= share * size + rest:
            for i in range(nodes):
                s.left[s.nodes[i]] = s.free_cpus[s.nodes[i]]
            for i in range(size):
                s.left[chosen[i]] -= <int>share
            balance = most_even_rest(s, chosen, size, nodes, rest, group, extra, &extra_count)
            if balance < best:
                best = balance
                memcpy(s.chosen, chosen, size * sizeof(int))
                memcpy(s.extra, extra, extra_count * sizeof(int))
                s.chosen_count, s.extra_count = size, extra_count
        more = next_combination(places, size, nodes)
    return best != INFINITY


cdef inline bint fullest_split(
    split *s, int nodes, int size, int64_t share, int64_t rest, int64_t group
) noexcept nogil:
    """Choose as `_choose` does, but only among the nodes with the most free CPUs."""
    cdef int i, j, node, fullest
    cdef int64_t groups = 0
    for i in range(nodes):  # insertion keeps the order of equally full nodes
        node = s.nodes[i]
        j = i
        while j > 0 and s.free_cpus[s.remaining[j - 1]] < s.free_cpus[node]:
            s.remaining[j] = s.remaining[j - 1]
            j -= 1
        s.remaining[j] = node
    for i in range(size):
        node = s.chosen[i] = s.remaining[i]
        groups += s.free_cpus[node] // group
        s.left[node] = s.free_cpus[node] - <int>share
    if groups * group < share * size + rest or s.left[s.chosen[size - 1]] < 0:
        return False
    s.chosen_count, s.extra_count = size, 0
    while rest > 0:
        fullest = s.chosen[0]
        for i in range(1, size):
            if s.left[s.chosen[i]] > s.left[fullest]:
                fullest = s.chosen[i]
        s.left[fullest] -= <int>group
        s.extra[s.extra_count] = fullest
        s.extra_count += 1
        rest -= group
    return True
