"""Compiled FNV-1a; the rule is in `_device_checksum_py`."""

from libc.stdint cimport uint32_t


def fnv1a(const unsigned char[::1] data):
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    with nogil:
        for i in range(data.shape[0]):
            value = (value ^ data[i]) * 16777619u
    return value
