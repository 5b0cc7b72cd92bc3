"""The compiled text of many series; `_exposition_py` states its rules."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport INT64_MIN, int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t) except NULL
    int _PyBytes_Resize(PyObject **, Py_ssize_t) except -1
    char *raw_bytes "PyBytes_AS_STRING"(PyObject *)

cdef enum:
    MOST_DIGITS = 24


cdef inline char *_put(char *out, bytes piece):
    cdef Py_ssize_t n = PyBytes_GET_SIZE(piece)
    memcpy(out, PyBytes_AS_STRING(piece), n)
    return out + n


cdef inline char *_number(char *out, int64_t value, int point) noexcept nogil:
    cdef char digits[MOST_DIGITS]
    cdef int at = MOST_DIGITS
    cdef int left = point
    cdef bint shown = False
    cdef uint64_t rest = <uint64_t>-value if value < 0 else <uint64_t>value
    cdef char digit
    while rest or left >= 0:
        digit = <char>(48 + rest % 10)
        rest //= 10
        if left > 0:
            if shown or digit != 48:
                shown = True
                at -= 1
                digits[at] = digit
        else:
            if left == 0 and shown:
                at -= 1
                digits[at] = 46
            at -= 1
            digits[at] = digit
        left -= 1
    if value < 0:
        at -= 1
        digits[at] = 45
    memcpy(out, &digits[at], MOST_DIGITS - at)
    return out + (MOST_DIGITS - at)


def exposition(series):
    """Write as the twin does."""
    cdef Py_ssize_t most = 0
    cdef Py_ssize_t row
    cdef bytes heading, opening
    cdef PyObject *text
    cdef list labels
    cdef const int64_t[:] values
    cdef int point
    cdef list whole = []
    cdef char *out
    for each in series:
        heading, opening, labels = each[0], each[1], list(each[2])
        values, point = each[3], each[4]
        if len(labels) != values.shape[0] or not 0 <= point <= 18:
            raise ValueError(f"{opening!r}: {len(labels)} labels, {values.shape[0]} values, point {point}")
        most += len(heading)
        for row in range(values.shape[0]):
            if values[row] != INT64_MIN:
                most += len(opening) + len(<bytes?>labels[row]) + MOST_DIGITS + 3
        whole.append((heading, opening, labels, values, point))
    text = PyBytes_FromStringAndSize(NULL, most)
    out = raw_bytes(text)
    for heading, opening, labels, values, point in whole:
        for row in range(values.shape[0]):
            if values[row] == INT64_MIN:
                continue
            if heading is not None:
                out = _put(out, heading)
                heading = None
            out = _put(out, opening)
            out = _put(out, <bytes>labels[row])
            out[0], out[1] = 125, 32
            out = _number(out + 2, values[row], point)
            out[0] = 10
            out += 1
    _PyBytes_Resize(&text, out - raw_bytes(text))
    result = <object>text
    Py_DECREF(result)
    return result
