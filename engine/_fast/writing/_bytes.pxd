"""Helpers of both compiled writers: bytes written in place, and pieces of given text."""

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
    int64_t e_longest(const int64_t *, int64_t, int64_t)

cdef enum:
    PIECE = 1 << 17  # bytes that a writer yields at a time
