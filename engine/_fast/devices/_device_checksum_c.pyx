"""Compiled FNV-1a; the rule is in `_device_checksum_py`."""

from libc.stdint cimport uint32_t, uint64_t


def fnv1a(const unsigned char[::1] data):
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    with nogil:
        for i in range(data.shape[0]):
            value = (value ^ data[i]) * 16777619u
    return value


def fnv1a_128(const unsigned char[::1] data):
    """The prime is 2^88 + 0x13b: two 64-bit halves, and what the lower one carries over."""
    cdef uint64_t high = 0x6c62272e07bb0142u, low = 0x62b821756295c58du, carry
    cdef Py_ssize_t i
    with nogil:
        for i in range(data.shape[0]):
            low ^= data[i]
            carry = ((low >> 32) * 0x13b + (((low & 0xffffffffu) * 0x13b) >> 32)) >> 32
            high = high * 0x13b + carry + (low << 24)
            low *= 0x13b
    return (int(high) << 64) | low
