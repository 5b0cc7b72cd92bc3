"""Read the files of many cgroups; `groups` states the rules."""

import os

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "groups.h" nogil:
    enum:
        G_MOST
        G_WIDTH
        G_CONTROLLERS
    ctypedef struct g_io:
        int64_t row
        int64_t major
        int64_t minor
        int64_t moved[4]
    ctypedef struct g_ios:
        g_io *rows
        size_t used
        size_t capacity
        int failed
    void g_open(const char *const *, int, int *)
    void g_close(const int *)
    int g_group(const int *, const char *, int, int64_t, int, int, char *, int64_t, int64_t *, g_ios *)


def refresh_groups(tops, list cgroups, const int64_t[::1] parents, const uint8_t[::1] due,
                   int64_t[::1] numbers):
    """Bring `numbers` up to date: a row for each of `cgroups`, one after another, `ABSENT` where it was never
    read.

    `tops` are the directories of `V1_CONTROLLERS`, or the one of v2. `cgroups` are paths below each of them,
    without a slash at either end; None is a row without a group. Such a row, and that of a group that is
    gone, is `ABSENT`. `parents` has the row of each group's parent, -1 for none; the parent comes first.

    Return 1 for each group that was read and 0 for an idle one, of which at most the due part was read; and
    a tuple of `IO_COLUMNS` for each device of the groups that were read. The GIL is released meanwhile.

    Raise ValueError if columns differ in length, a group comes before its parent, or `tops` has another
    length.
    """
    cdef list directories = [os.fsencode(top) for top in tops]
    cdef int controllers = len(directories)
    cdef bint v1 = controllers != 1
    cdef Py_ssize_t n = len(cgroups)
    cdef Py_ssize_t row
    cdef int64_t tick = 10**9 // os.sysconf("SC_CLK_TCK")
    if parents.shape[0] != n or due.shape[0] != n or numbers.shape[0] != n * G_WIDTH:
        raise ValueError(f"{n} groups, but columns of another length")
    for row in range(n):
        if parents[row] >= row:
            raise ValueError(f"group {row} comes before its parent")
    if controllers not in (1, G_CONTROLLERS):
        raise ValueError(f"{controllers} directories of controllers")
    seen = bytearray(n)
    cdef uint8_t[::1] moved = seen
    cdef g_io *one
    cdef g_ios ios = g_ios(NULL, 0, 0, 0)
    cdef int opened[G_CONTROLLERS]
    cdef const char *top_paths[G_CONTROLLERS]
    cdef int resting
    cdef char *buffer = <char *>malloc(G_MOST)
    cdef const char **paths = <const char **>malloc((n + 1) * sizeof(char *))
    try:
        if buffer == NULL or paths == NULL:
            raise MemoryError
        for row in range(controllers):
            top_paths[row] = <bytes>directories[row]
        for row in range(n):
            if cgroups[row] is None:
                paths[row] = NULL
            elif isinstance(cgroups[row], bytes):
                paths[row] = <bytes>cgroups[row]
            else:
                raise TypeError(f"{cgroups[row]!r} is no path in bytes")
        with nogil:
            g_open(top_paths, controllers, opened)
            for row in range(n):
                resting = parents[row] >= 0 and not moved[parents[row]]
                moved[row] = g_group(opened, paths[row], v1, tick, due[row], resting, buffer, row,
                                     &numbers[row * G_WIDTH], &ios)
            g_close(opened)
        if ios.failed:
            raise MemoryError
        io = []
        for row in range(<Py_ssize_t>ios.used):
            one = &ios.rows[row]
            io.append((one.row, one.major, one.minor,
                       one.moved[0], one.moved[1], one.moved[2], one.moved[3]))
        return seen, io
    finally:
        free(buffer)
        free(paths)
        free(ios.rows)
