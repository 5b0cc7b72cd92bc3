"""Compiled counts and sizes of the images on nodes: one pass over the images. See `_node_images_py.py`."""

from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np


def count_images(const int32_t[::1] node, int64_t[::1] counts):
    cdef Py_ssize_t row, nodes = counts.shape[0]
    cdef int32_t last = 0
    cdef bint known = True, ordered = True
    with nogil:
        for row in range(node.shape[0]):
            if not 0 <= node[row] < nodes:
                known = False
                break
            counts[node[row]] += 1
            ordered &= node[row] >= last
            last = node[row]
    if not known:
        raise ValueError("expected nodes with a count")
    return bool(ordered)


def note_sizes(const int32_t[::1] code, const int64_t[::1] size, int64_t[::1] sizes):
    cdef Py_ssize_t row, codes = sizes.shape[0]
    cdef int64_t before
    cdef bint known = True, equal = True
    if code.shape[0] != size.shape[0]:
        raise ValueError("expected a size for each code")
    with nogil:
        for row in range(code.shape[0]):
            if not 0 <= code[row] < codes:
                known = False
                break
            before = sizes[code[row]]
            equal &= before == size[row] or before == -1
            sizes[code[row]] = size[row]
    if not known:
        raise ValueError("expected codes with a size")
    return bool(equal)


def rows_on_nodes(const int32_t[::1] code, const int64_t[::1] offsets, const uint8_t[::1] wanted):
    cdef Py_ssize_t count = offsets.shape[0] - 1, codes = wanted.shape[0], node, row
    cdef bint ascending = True, known = True
    found = np.full(max(count, 0), -1, np.int64)
    cdef int64_t[::1] rows = found
    if count < 1:
        return found
    if offsets[0] < 0 or offsets[count] > code.shape[0]:
        raise ValueError("expected ascending offsets")
    with nogil:
        for node in range(count):
            if offsets[node] > offsets[node + 1]:
                ascending = False
                break
            for row in range(offsets[node], offsets[node + 1]):
                if not 0 <= code[row] < codes:
                    known = False
                    break
                if wanted[code[row]]:
                    rows[node] = row
            if not known:
                break
    if not ascending:
        raise ValueError("expected ascending offsets")
    if not known:
        raise ValueError("expected known codes")
    return found
