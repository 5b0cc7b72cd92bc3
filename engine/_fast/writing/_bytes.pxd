"""Helpers of both compiled writers: bytes written in place, pieces of given text, and columns of numbers."""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t) except NULL
    int _PyBytes_Resize(PyObject **, Py_ssize_t) except -1
    char *raw_bytes "PyBytes_AS_STRING"(PyObject *)

cdef extern from "exposition.h" nogil:
    ctypedef struct e_text:
        const char *at
        size_t length
    const int64_t E_ABSENT
    ctypedef struct e_values:
        const char *at
        ptrdiff_t step
        const int64_t *rows
    int64_t e_longest(const int64_t *, int64_t, int64_t)
    int e_all_within(const int64_t *, int64_t, int64_t, int64_t)

cdef enum:
    PIECE = 1 << 17  # bytes that a writer yields at a time


cdef inline int64_t take_values(given, e_values *values, list kept) except -1:
    """Read `Values`, whose memory `kept` keeps, and return their number.

    Raise ValueError if a row does not exist.
    """
    cdef const int64_t[:] column
    cdef const int64_t[::1] rows
    cdef int64_t count
    values.rows = NULL
    if isinstance(given, tuple):
        column, rows = given
        count = rows.shape[0]
        if count:
            values.rows = &rows[0]
            if not e_all_within(values.rows, count, E_ABSENT, column.shape[0]):
                raise ValueError(f"a row is not one of {column.shape[0]}")
            kept.append(rows)
    else:
        column = given
        count = column.shape[0]
    values.at = <const char *>&column[0] if column.shape[0] else NULL
    values.step = column.strides[0]
    kept.append(column)
    return count
