"""Finds where JSON objects begin and end in a byte buffer. The rule is stated in `_json_split_py`."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

cdef int _MORE = 0
cdef int _DONE = 1
cdef int _FULL = 2
cdef int _TOO_DEEP = 3
cdef int _UNEXPECTED = 4
cdef int _OBJECT = 5
cdef int _ITEMS = 6

# 0 nothing, 1 opens, 2 closes, 3 a string begins
cdef uint8_t _CLASS[256]
cdef int _i
for _i in range(256):
    _CLASS[_i] = 0
_CLASS[0x7B] = 1
_CLASS[0x5B] = 1
_CLASS[0x7D] = 2
_CLASS[0x5D] = 2
_CLASS[0x22] = 3


cdef inline bint _is_space(uint8_t byte) noexcept nogil:
    return byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09


cdef inline int64_t _string_end(const uint8_t *data, int64_t at, int64_t size) noexcept nogil:
    """Return the index after the closing quote of the string that starts at `at`; -1 if it is cut off."""
    cdef int64_t quote, back
    cdef const void *found
    cdef int64_t first = at
    while at < size:
        found = memchr(data + at, 0x22, size - at)
        if found == NULL:
            return -1
        quote = <const uint8_t *> found - data
        back = quote
        while back > first and data[back - 1] == 0x5C:
            back -= 1
        if (quote - back) % 2 == 0:
            return quote + 1
        at = quote + 1
    return -1


cdef int64_t _value_end(
    const uint8_t *data, int64_t at, int64_t size, int64_t depth, int64_t max_depth, int *status
) noexcept nogil:
    """Return the index after the bracket that brings `depth` to zero, reading from `at`."""
    cdef uint8_t kind
    while at < size:
        kind = _CLASS[data[at]]
        at += 1
        if kind == 0:
            continue
        if kind == 3:
            at = _string_end(data, at, size)
            if at < 0:
                status[0] = _MORE
                return -1
        elif kind == 1:
            depth += 1
            if depth > max_depth:
                status[0] = _TOO_DEEP
                return at - 1
        else:
            depth -= 1
            if depth == 0:
                status[0] = _DONE
                return at
    status[0] = _MORE
    return -1


def split_items(const uint8_t[::1] buffer, int64_t start, int64_t[:, ::1] bounds, int64_t max_depth):
    cdef int64_t at = start, size = buffer.shape[0], end, count = 0, room = bounds.shape[0]
    cdef const uint8_t *data = &buffer[0] if size else NULL
    cdef int status = _MORE
    with nogil:
        while at < size:
            if _is_space(data[at]) or data[at] == 0x2C:
                at += 1
            elif data[at] == 0x7B:
                if count == room:
                    status = _FULL
                    break
                end = _value_end(data, at, size, 0, max_depth, &status)
                if status != _DONE:
                    break
                bounds[count, 0] = at
                bounds[count, 1] = end
                count += 1
                at = end
                status = _MORE
            elif data[at] == 0x5D:
                at += 1
                status = _DONE
                break
            else:
                status = _UNEXPECTED
                break
    return count, at, status


def open_document(const uint8_t[::1] buffer, int64_t start, int64_t max_depth):
    cdef int64_t at = start, size = buffer.shape[0], begin, end, depth = 1, after
    cdef const uint8_t *data = &buffer[0] if size else NULL
    cdef uint8_t byte, kind
    while at < size and (_is_space(data[at]) or data[at] == 0x2C):
        at += 1
    begin = at
    if at == size:
        return _MORE, begin, at
    if data[at] == 0x5B:
        return _ITEMS, begin, at + 1
    if data[at] != 0x7B:
        return _UNEXPECTED, begin, at
    at += 1
    while at < size:
        byte = data[at]
        kind = _CLASS[byte]
        at += 1
        if kind == 0:
            continue
        if kind == 3:
            end = _string_end(data, at, size)
            if end < 0:
                return _MORE, begin, begin
            if depth == 1 and end - at == 6 and memcmp(data + at, b"items", 5) == 0:
                after = end
                while after < size and (_is_space(data[after]) or data[after] == 0x3A):
                    after += 1
                if after == size:
                    return _MORE, begin, begin
                if after > end and data[after] == 0x5B:
                    return _ITEMS, begin, after + 1
            at = end
        elif kind == 1:
            depth += 1
            if depth > max_depth:
                return _TOO_DEEP, begin, at - 1
        else:
            depth -= 1
            if depth == 0:
                return _OBJECT, begin, at
    return _MORE, begin, begin


def close_document(const uint8_t[::1] buffer, int64_t start, int64_t max_depth):
    cdef int64_t size = buffer.shape[0], end
    cdef int status = _MORE
    if size == 0:
        return _MORE, start
    end = _value_end(&buffer[0], start, size, 1, max_depth, &status)
    return status, (start if status == _MORE else end)
