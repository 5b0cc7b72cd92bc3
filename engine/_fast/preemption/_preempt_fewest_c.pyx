"""The best set of so many candidates, compiled. The rule is in `_preempt_fewest_py.py`."""

import numpy as np

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef enum:
    CHECK_EVERY = 4096

cdef double SLACK = 1e-12


cdef double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <double>now.tv_sec + 1e-9 * <double>now.tv_nsec


cdef struct search:
    int64_t candidates
    int needs, size, wants_more
    const int64_t *amounts     # [candidates, needs]
    const int64_t *priorities
    const int64_t *need
    const int64_t *goals
    int64_t *most              # [candidates + 1, size + 1, needs]: largest sums among the rest
    int64_t *least             # the same, smallest
    int64_t *cheapest          # [candidates + 1, size + 1]
    int64_t *left              # [size + 1, needs]: what is left at each depth
    int32_t *chosen            # [size]
    int32_t *best              # [size]
    int found, time_is_up
    int64_t best_priority
    double best_beyond, deadline
    int64_t visits, most_visits


cdef void suffix_sums(const int64_t *values, int64_t n, int64_t step, int sign, int size, int64_t *sums,
                      int64_t width, int64_t *smallest) noexcept nogil:
    """Fill `sums`: row i, entry r is the sum of the r largest (sign -1) or smallest (1) values from i on."""
    cdef int64_t i, value, total
    cdef int held = 0, r
    for r in range(size + 1):
        sums[n * (size + 1) * width + r * width] = 0
    for i in range(n - 1, -1, -1):
        value = sign * values[i * step]
        if held < size:
            r = held
            held += 1
        elif value < smallest[held - 1]:
            r = held - 1
        else:
            r = -1
        if r >= 0:
            while r > 0 and smallest[r - 1] > value:
                smallest[r] = smallest[r - 1]
                r -= 1
            smallest[r] = value
        total = 0
        sums[i * (size + 1) * width] = 0
        for r in range(1, size + 1):
            if r <= held:
                total += smallest[r - 1]
            sums[(i * (size + 1) + r) * width] = sign * total


cdef void take(search *s) noexcept nogil:
    """Keep the complete set if it is the best so far."""
    cdef int64_t priority = 0, left
    cdef double beyond = 0.0, share
    cdef int j, depth
    for depth in range(s.size):
        priority += s.priorities[s.chosen[depth]]
    for j in range(s.needs):
        left = s.need[j]
        for depth in range(s.size):
            left -= s.amounts[<int64_t>s.chosen[depth] * s.needs + j]
        if s.wants_more:
            share = <double>(s.need[j] - left) / <double>s.goals[j]
            beyond -= share if share < 1.0 else 1.0
        else:
            beyond += <double>(-left) / <double>s.need[j]
    if not s.found or priority < s.best_priority or (priority == s.best_priority and beyond < s.best_beyond):
        s.found = 1
        s.best_priority = priority
        s.best_beyond = beyond
        memcpy(s.best, s.chosen, <size_t>s.size * sizeof(int32_t))


cdef bint too_much(const search *s, const int64_t *left, int64_t index, int more) noexcept nogil:
    cdef double beyond = 0.0, over
    cdef int j
    for j in range(s.needs):
        over = <double>(s.least[(index * (s.size + 1) + more) * s.needs + j] - left[j])
        if over > 0.0:
            beyond += over / <double>s.need[j]
    return beyond > s.best_beyond * (1 + SLACK) + SLACK


cdef void extend(search *s, int depth, int64_t first, int64_t priority) noexcept nogil:
    cdef int more = s.size - depth, j
    cdef int64_t index, cost
    cdef int64_t *left = s.left + <int64_t>depth * s.needs
    cdef const int64_t *most
    s.visits += 1
    if s.visits > s.most_visits or (s.visits % CHECK_EVERY == 0 and monotonic() >= s.deadline):
        s.time_is_up = 1
    if s.time_is_up:
        return
    if more == 0:
        for j in range(s.needs):
            if left[j] > 0:
                return
        take(s)
        return
    for index in range(first, s.candidates - more + 1):
        most = s.most + (index * (s.size + 1) + more) * s.needs
        for j in range(s.needs):
            if left[j] > most[j]:
                return
        if s.found:
            cost = priority + s.cheapest[index * (s.size + 1) + more]
            if cost > s.best_priority:
                return
            if cost == s.best_priority and not s.wants_more and too_much(s, left, index, more):
                return
        for j in range(s.needs):
            left[s.needs + j] = left[j] - s.amounts[index * s.needs + j]
        s.chosen[depth] = <int32_t>index
        extend(s, depth + 1, index + 1, priority + s.priorities[index])
        if s.time_is_up:
            return


def best_of_size(const int64_t[:, ::1] amounts, const int64_t[::1] priorities, const int64_t[::1] needs,
                 const int64_t[::1] goals, int size, const int32_t[::1] start, double seconds,
                 int64_t steps):
    cdef search s
    cdef int64_t n = amounts.shape[0], table = (n + 1) * (size + 1)
    cdef int k = <int>needs.shape[0], j
    if amounts.shape[1] != k or priorities.shape[0] != n or (goals.shape[0] and goals.shape[0] != k):
        raise ValueError(f"expected amounts of {k} needs and a priority for each of {n} candidates")
    if start.shape[0] and start.shape[0] != size:
        raise ValueError(f"a start of {start.shape[0]} candidates for sets of {size}")
    if n == 0 or k == 0 or size <= 0 or size > n:
        return np.empty(0, np.int32), True, 0
    best = np.zeros(size, np.int32)
    cdef int32_t[::1] best_at = best
    cdef int64_t *memory = <int64_t *>malloc(
        <size_t>(table * (2 * k + 1) + (size + 2) * k + size) * sizeof(int64_t))
    cdef int32_t *chosen = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
    cdef int64_t *smallest
    try:
        if memory == NULL or chosen == NULL:
            raise MemoryError
        s.candidates, s.needs, s.size = n, k, size
        s.wants_more = goals.shape[0] > 0
        s.amounts, s.priorities, s.need = &amounts[0, 0], &priorities[0], &needs[0]
        s.goals = &goals[0] if s.wants_more else NULL
        s.most = memory
        s.least = s.most + table * k
        s.cheapest = s.least + table * k
        s.left = s.cheapest + table
        smallest = s.left + (size + 2) * k
        s.chosen, s.best = chosen, &best_at[0]
        s.found = s.time_is_up = 0
        s.best_priority, s.best_beyond, s.visits = 0, 0.0, 0
        s.deadline = monotonic() + seconds
        s.most_visits = steps
        if start.shape[0]:
            for j in range(size):
                if not 0 <= start[j] < n:
                    raise ValueError(f"candidate {start[j]} of the start is not there")
                chosen[j] = start[j]
            take(&s)
        with nogil:
            for j in range(k):
                suffix_sums(s.amounts + j, n, k, -1, size, s.most + j, k, smallest)
                suffix_sums(s.amounts + j, n, k, 1, size, s.least + j, k, smallest)
            suffix_sums(s.priorities, n, 1, 1, size, s.cheapest, 1, smallest)
            for j in range(k):
                s.left[j] = s.need[j]
            extend(&s, 0, 0, 0)
        return best if s.found else np.empty(0, np.int32), not s.time_is_up, s.visits
    finally:
        free(memory)
        free(chosen)
