# cython: binding=False
"""Preemption victims on one node or on many. The rule is in `_preemption_py.py`."""

from array import array as new_array

import numpy as np

from cython.parallel cimport prange, threadid
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc


cdef extern from "threads.h" nogil:
    int kb_threads(int wanted)

cdef extern from "preemption_kernel.h" nogil:
    enum:
        KB_MAX_NEEDS
    int kb_width
    ctypedef struct kb_columns:
        int needs
        const int64_t *column[32]
        const int64_t *memory
        const int64_t *cpu
    ctypedef struct kb_preemptor:
        const uint8_t *qos
        const uint8_t *flags
        const int32_t *priority
        int critical
        int has_priority
        int32_t value
    ctypedef struct kb_workspace:
        void *arena
        size_t bytes
        int64_t touched
    size_t kb_bytes_for(int64_t n, int needs)
    int kb_reserve(kb_workspace *space, size_t bytes)
    int32_t kb_victims(const kb_columns *columns, const kb_preemptor *who, const int64_t *needs,
                       const int32_t *rows, int64_t first, int64_t n, int32_t *scratch, int32_t *victims,
                       int64_t *shortage, kb_workspace *space)


def use_width(int doubles):
    """Select the copy for 2, 4 (AVX2) or 8 (AVX-512) doubles at once, or 0 to detect it; for tests."""
    global kb_width
    kb_width = doubles


cdef int fill(kb_columns *columns, kb_preemptor *who, const int64_t[:, ::1] ranking, const uint8_t[::1] qos,
              const uint8_t[::1] flags, const int32_t[::1] priority, bint critical, preemptor_priority,
              const int32_t[::1] resources, int64_t needs) except -1:
    """Collect pointers for the C code. Raises ValueError for shapes that do not match."""
    cdef int64_t rows = flags.shape[0]
    cdef int i
    if ranking.shape[0] < 2 or ranking.shape[1] != rows or qos.shape[0] != rows or priority.shape[0] != rows:
        raise ValueError("ranking needs two resources or more, and every column the same number of rows")
    if resources.shape[0] != needs:
        raise ValueError(f"{resources.shape[0]} resources but {needs} needs")
    if needs > KB_MAX_NEEDS:
        raise ValueError(f"{needs} short resources; at most {KB_MAX_NEEDS}")
    columns.needs = <int>needs
    columns.cpu = &ranking[0, 0]
    columns.memory = &ranking[1, 0]
    for i in range(columns.needs):
        if not -1 <= resources[i] < ranking.shape[0]:
            raise ValueError(f"resource id {resources[i]} has no column")
        columns.column[i] = NULL if resources[i] == -1 else &ranking[resources[i], 0]
    who.qos = &qos[0]
    who.flags = &flags[0]
    who.priority = &priority[0]
    who.critical = critical
    who.has_priority = preemptor_priority is not None
    who.value = 0 if preemptor_priority is None else preemptor_priority
    return 0


def victims(const int64_t[:, ::1] ranking, const uint8_t[::1] qos, const uint8_t[::1] flags,
            const int32_t[::1] priority, rows, bint critical, preemptor_priority,
            const int32_t[::1] resources, const int64_t[::1] needs, work=None):
    cdef kb_columns columns
    cdef kb_preemptor who
    cdef kb_workspace space
    cdef const int32_t[::1] listed
    cdef const int32_t *row_at = NULL
    cdef int64_t n = flags.shape[0], i
    cdef int32_t count = 0
    if rows is not None:
        listed = rows
        n = listed.shape[0]
    shortage = new_array("q", bytes(8 * needs.shape[0]))
    if n == 0 or needs.shape[0] == 0:
        for i in range(needs.shape[0]):
            shortage[i] = max(0, needs[i])
        return new_array("i"), shortage
    fill(&columns, &who, ranking, qos, flags, priority, critical, preemptor_priority, resources,
         needs.shape[0])
    if rows is not None:
        row_at = &listed[0]
        for i in range(n):
            if not 0 <= listed[i] < flags.shape[0]:
                raise ValueError(f"row {listed[i]} is not in the table")
    cdef int64_t[::1] shortage_at = shortage
    cdef int32_t[::1] out
    cdef int32_t *buffer = <int32_t *>malloc(4 * n * sizeof(int32_t))
    space.arena = NULL
    space.bytes = 0
    space.touched = 0
    try:
        if buffer == NULL or not kb_reserve(&space, kb_bytes_for(n, columns.needs)):
            raise MemoryError
        with nogil:
            count = kb_victims(&columns, &who, &needs[0], row_at, 0, n, buffer, buffer + 3 * n,
                               &shortage_at[0], &space)
        chosen = new_array("i", bytes(4 * count))
        out = chosen
        for i in range(count):
            out[i] = buffer[3 * n + i]
        if work is not None:
            work[0] += space.touched
        return chosen, shortage
    finally:
        free(buffer)
        free(space.arena)


def victims_by_node(const int64_t[:, ::1] ranking, const uint8_t[::1] qos, const uint8_t[::1] flags,
                    const int32_t[::1] priority, const int64_t[::1] offsets, bint critical,
                    preemptor_priority, const int32_t[::1] resources, const int64_t[:, ::1] needs,
                    int threads=0):
    cdef kb_columns columns
    cdef kb_preemptor who
    cdef int64_t nodes = offsets.shape[0] - 1, node, largest = 1, size, total = 0, i
    cdef int team = kb_threads(threads)
    cdef int thread
    if needs.shape[0] != nodes:
        raise ValueError(f"needs has {needs.shape[0]} rows for {nodes} nodes")
    shortage = np.zeros((nodes, needs.shape[1]), np.int64)
    victim_offsets = np.zeros(nodes + 1, np.int64)
    if nodes <= 0 or flags.shape[0] == 0 or needs.shape[1] == 0:
        np.maximum(needs, 0, out=shortage)
        return victim_offsets, np.empty(0, np.int32), shortage
    fill(&columns, &who, ranking, qos, flags, priority, critical, preemptor_priority, resources,
         needs.shape[1])
    for node in range(nodes):
        size = offsets[node + 1] - offsets[node]
        if size < 0 or offsets[node] < 0 or offsets[node + 1] > flags.shape[0]:
            raise ValueError("offsets must rise and stay within the rows")
        largest = max(largest, size)
    cdef int64_t[:, ::1] shortage_at = shortage
    cdef int64_t[::1] ends = victim_offsets
    cdef int32_t *found = <int32_t *>malloc(flags.shape[0] * sizeof(int32_t))
    cdef int32_t *scratch = <int32_t *>malloc(<size_t>team * 3 * largest * sizeof(int32_t))
    cdef kb_workspace *spaces = <kb_workspace *>calloc(team, sizeof(kb_workspace))
    cdef int32_t[::1] out
    try:
        if found == NULL or scratch == NULL or spaces == NULL:
            raise MemoryError
        for thread in range(team):
            if not kb_reserve(&spaces[thread], kb_bytes_for(largest, columns.needs)):
                raise MemoryError
        for node in prange(nodes, nogil=True, schedule="dynamic", chunksize=64, num_threads=team):
            thread = threadid()
            ends[node + 1] = kb_victims(
                &columns, &who, &needs[node, 0], NULL, offsets[node], offsets[node + 1] - offsets[node],
                scratch + <int64_t>thread * 3 * largest, found + offsets[node], &shortage_at[node, 0],
                &spaces[thread])
        for node in range(nodes):
            ends[node + 1] += ends[node]
        total = ends[nodes]
        chosen = np.empty(total, np.int32)
        out = chosen
        for node in range(nodes):
            for i in range(ends[node + 1] - ends[node]):
                out[ends[node] + i] = found[offsets[node] + i]
        return victim_offsets, chosen, shortage
    finally:
        free(found)
        free(scratch)
        if spaces != NULL:
            for thread in range(team):
                free(spaces[thread].arena)
        free(spaces)
