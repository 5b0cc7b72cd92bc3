"""Compiled bitset kernels; the rules are in `_bitset_py`."""

import numpy as np

from cpython.list cimport PyList_Append
from libc.stdint cimport int32_t, int64_t, uint64_t


cdef extern from "bitset.h" nogil:
    int64_t kb_count(const uint64_t *a, size_t words)
    int64_t kb_count_and(const uint64_t *a, const uint64_t *b, size_t words)
    int64_t kb_count_andnot(const uint64_t *a, const uint64_t *b, size_t words)
    void kb_andnot(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t words)
    void kb_and(const uint64_t *a, const uint64_t *b, uint64_t *out, size_t words)
    int __builtin_ctzll(unsigned long long x)


cdef inline Py_ssize_t _words(const uint64_t[::1] a, const uint64_t[::1] b) except -1:
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"bitsets of {a.shape[0]} and {b.shape[0]} words")
    return a.shape[0]


def difference(const uint64_t[::1] a, const uint64_t[::1] b):
    cdef Py_ssize_t words = _words(a, b)
    out = np.empty(words, np.uint64)
    cdef uint64_t[::1] view = out
    if words:
        kb_andnot(&a[0], &b[0], &view[0], words)
    return out


def intersection(const uint64_t[::1] a, const uint64_t[::1] b):
    cdef Py_ssize_t words = _words(a, b)
    out = np.empty(words, np.uint64)
    cdef uint64_t[::1] view = out
    if words:
        kb_and(&a[0], &b[0], &view[0], words)
    return out


def count(const uint64_t[::1] a):
    return kb_count(&a[0], a.shape[0]) if a.shape[0] else 0


def count_intersection(const uint64_t[::1] a, const uint64_t[::1] b):
    cdef Py_ssize_t words = _words(a, b)
    return kb_count_and(&a[0], &b[0], words) if words else 0


def count_difference(const uint64_t[::1] a, const uint64_t[::1] b):
    cdef Py_ssize_t words = _words(a, b)
    return kb_count_andnot(&a[0], &b[0], words) if words else 0


cdef inline Py_ssize_t _emit(
    uint64_t word, Py_ssize_t at, int32_t[::1] out, Py_ssize_t filled
) noexcept nogil:
    while word and filled < out.shape[0]:
        out[filled] = <int32_t> (64 * at + __builtin_ctzll(word))
        word &= word - 1
        filled += 1
    return filled


def first(const uint64_t[::1] a, Py_ssize_t n):
    cdef Py_ssize_t i, filled = 0
    out = np.empty(min(max(n, 0), 64 * a.shape[0]), np.int32)
    cdef int32_t[::1] view = out
    with nogil:
        for i in range(a.shape[0]):
            filled = _emit(a[i], i, view, filled)
            if filled == view.shape[0]:
                break
    return out[:filled]


def first_of_difference(const uint64_t[::1] a, const uint64_t[::1] b, Py_ssize_t n):
    cdef Py_ssize_t i, words = _words(a, b)
    cdef uint64_t word
    cdef list found = []
    for i in range(words):
        word = a[i] & ~b[i]
        while word and n > 0:
            PyList_Append(found, 64 * i + __builtin_ctzll(word))
            word &= word - 1
            n -= 1
        if n <= 0:
            break
    return found
