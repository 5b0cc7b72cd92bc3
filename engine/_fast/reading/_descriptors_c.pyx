"""Count the open descriptors of cgroups; `descriptors` states the rules."""

import os

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_RDONLY, open
from posix.unistd cimport close

cdef enum:
    WIDTH = 3

cdef extern from "descriptors.h" nogil:
    enum:
        D_MOST
        O_DIRECTORY
        O_CLOEXEC
    int64_t d_now()
    void d_group(int, int, const char *, char *, char *, int64_t *)


def count_descriptors(proc, top, list cgroups, const int64_t[::1] rows, int64_t[::1] counts,
                      int64_t nanoseconds):
    """Write `DESCRIPTOR_COLUMNS` of the groups `rows` to `counts`, which has those of all `cgroups` one after
    another, and return how many rows were counted.

    `cgroups` are paths as for `refresh_groups`, below `top`, the directory of the memory controller. A group
    that is gone has a row of `ABSENT`; a limit is -1 if there is none, `ABSENT` without a process. Rows are
    counted in their order, and at least one. The GIL is released meanwhile.

    Raise ValueError if columns differ in length or a row does not exist.
    """
    cdef bytes processes = os.fsencode(proc)
    cdef bytes directory = os.fsencode(top)
    cdef Py_ssize_t n = rows.shape[0]
    cdef Py_ssize_t done = 0
    cdef Py_ssize_t at
    cdef const char *proc_path = processes
    cdef const char *top_path = directory
    cdef int proc_at, top_at
    cdef int64_t end
    if counts.shape[0] != WIDTH * len(cgroups):
        raise ValueError(f"{len(cgroups)} groups, but other columns")
    cdef char *listed = <char *>malloc(D_MOST)
    cdef char *limits = <char *>malloc(D_MOST)
    cdef const char **paths = <const char **>malloc((n + 1) * sizeof(char *))
    try:
        if listed == NULL or limits == NULL or paths == NULL:
            raise MemoryError
        for at in range(n):
            if not 0 <= rows[at] < len(cgroups):
                raise ValueError("a row does not exist")
            cgroup = cgroups[rows[at]]
            if cgroup is None:
                paths[at] = NULL
            elif isinstance(cgroup, bytes):
                paths[at] = <bytes>cgroup
            else:
                raise TypeError(f"{cgroup!r} is no path in bytes")
        with nogil:
            end = d_now() + nanoseconds
            proc_at = open(proc_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            top_at = open(top_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            while done < n and (done == 0 or d_now() < end):
                d_group(proc_at, top_at, paths[done], listed, limits, &counts[rows[done] * WIDTH])
                done += 1
            if proc_at >= 0:
                close(proc_at)
            if top_at >= 0:
                close(top_at)
        return done
    finally:
        free(listed)
        free(limits)
        free(paths)
