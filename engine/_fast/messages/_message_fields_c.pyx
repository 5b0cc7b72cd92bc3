"""Compiled picker of fields; the rule is in `_message_fields_py`.

Reads the ordinary case of the wire format in place and skips every field that no column needs by its length.
Unusual input (groups, lengths past the end, texts that are not UTF-8, overlong numbers) goes to the twin,
which lets the protobuf library decide.
"""

from array import array as new_array

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_Append
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from engine._fast.messages import _message_fields_py

cdef enum:
    COLUMNS = 16
    LEVELS = 16
    NUMBERS = 32  # fields with higher numbers are skipped
    TEXT = 1
    TEXTS = 2
    ENTRY = 3
    WHOLE = 4
    INT64 = 5
    UINT64 = 6
    INT32 = 7
    UINT32 = 8
    FLAG = 9
    MESSAGES = 10
    HELD_INT64 = 11
    HELD_UINT64 = 12
    INSIDE = 13  # a message that holds columns
    VARINT = 0
    DELIMITED = 2
    NONE = -1

cdef struct Span:
    const uint8_t *at
    const uint8_t *end

cdef struct Action:
    uint8_t kind
    int8_t column  # the first that the field feeds
    int8_t level   # of a message inside

cdef struct Level:
    Action actions[NUMBERS]


cdef inline bint _varint(Span *rest, uint64_t *value, int most) noexcept nogil:
    """Read a number of at most `most` bytes; return false if there is none."""
    cdef int i
    cdef uint8_t byte
    value[0] = 0
    for i in range(most):
        if rest.at == rest.end:
            return False
        byte = rest.at[0]
        rest.at += 1
        if i == 9 and byte > 1:
            return False
        value[0] |= <uint64_t>(byte & 0x7F) << (7 * i)
        if not byte & 0x80:
            return True
    return False


cdef inline bint _span(Span *rest, Span *span) noexcept nogil:
    """Read a length and that many bytes; return false if the message ends before."""
    cdef uint64_t size = 0
    if not _varint(rest, &size, 5) or size > <uint64_t>(rest.end - rest.at):
        return False
    span.at = rest.at
    rest.at += size
    span.end = rest.at
    return True


cdef inline bint _tag(Span *rest, uint32_t *number, int *wire) noexcept nogil:
    cdef uint64_t tag = 0
    if not _varint(rest, &tag, 5) or tag > 0xFFFFFFFFu or tag >> 3 == 0:
        return False
    number[0] = <uint32_t>(tag >> 3)
    wire[0] = tag & 7
    return True


cdef inline bint _skip(Span *rest, int wire) noexcept nogil:
    cdef uint64_t ignored = 0
    cdef Span span
    cdef Py_ssize_t size
    if wire == VARINT:
        return _varint(rest, &ignored, 10)
    if wire == DELIMITED:
        return _span(rest, &span)
    size = 8 if wire == 1 else 4
    if (wire != 1 and wire != 5) or rest.end - rest.at < size:
        return False
    rest.at += size
    return True


cdef inline bint _entry(Span entry, Span *key, Span *value) noexcept nogil:
    """Read the key and the value of a map entry. If it has other fields, `key.at` is NULL, because the
    protobuf library leaves such an entry out.
    """
    cdef uint32_t number = 0
    cdef int wire = 0
    cdef Span *part
    cdef bint others = False
    key.at = key.end = value.at = value.end = entry.end
    while entry.at < entry.end:
        if not _tag(&entry, &number, &wire):
            return False
        part = key if number == 1 else value if number == 2 else NULL
        if part != NULL and wire == DELIMITED:
            if not _span(&entry, part):
                return False
        else:
            others = True
            if not _skip(&entry, wire):
                return False
    if others:
        key.at = NULL
    return True


cdef inline uint64_t _mixed(uint64_t mixed, uint64_t word) noexcept nogil:
    mixed = (mixed ^ word) * <uint64_t>0x9E3779B97F4A7C15
    return mixed ^ (mixed >> 32)


cdef inline uint64_t _mixed_text(uint64_t mixed, Span text, uint64_t *bits) noexcept nogil:
    """Set in `bits` every bit that is set in any word."""
    cdef uint64_t word
    mixed = _mixed(mixed, <uint64_t>(text.end - text.at))
    while text.at < text.end:
        word = 0  # of a little-endian machine
        memcpy(&word, text.at, min(<size_t>(text.end - text.at), sizeof(word)))
        bits[0] |= word
        mixed = _mixed(mixed, word)
        text.at += min(<size_t>(text.end - text.at), sizeof(word))
    return mixed


cdef class Picker:
    cdef object _twin
    cdef int _columns, _levels
    cdef bint _single  # each column one text or number
    cdef uint8_t _kinds[COLUMNS]
    cdef int8_t _next[COLUMNS]  # the next column that the same map feeds
    cdef int8_t _holders[COLUMNS]  # the level that the column's field is in
    cdef list _keys
    cdef Level _table[LEVELS]
    # of the current item
    cdef Span _texts[COLUMNS]
    cdef uint64_t _numbers[COLUMNS]
    cdef uint32_t _seen  # a bit for each level
    cdef list _lists

    def __cinit__(self, message, columns):
        cdef int column, level
        cdef uint32_t number
        cdef Action *action
        self._twin = _message_fields_py.Picker(message, columns)
        self._levels = 1
        self._single = True
        self._keys = []
        memset(self._table, 0, sizeof(self._table))
        for kind, path, key in _message_fields_py.resolve(message, columns):
            column, level, action = self._columns, 0, NULL
            self._kinds[column] = kind
            if kind == TEXTS or kind == WHOLE or kind >= MESSAGES:
                self._single = False
            self._next[column] = NONE
            self._keys.append(key)
            self._columns += 1
            for at, field in enumerate(path):
                number = field
                if number >= NUMBERS:
                    raise ValueError(f"{columns[column]}: field {number}, at most {NUMBERS - 1}")
                action = &self._table[level].actions[number]
                if at < len(path) - 1:
                    if action.kind == 0:
                        if self._levels == LEVELS:
                            raise ValueError(f"more than {LEVELS} messages inside each other")
                        action.kind, action.level = INSIDE, <int8_t>self._levels
                        self._levels += 1
                    level = action.level
            self._holders[column] = <int8_t>level
            if action != NULL:
                self._next[column] = action.column if action.kind else <int8_t>NONE
                action.kind, action.column = <uint8_t>self._kinds[column], <int8_t>column

    def pick(self, bytes message not None):
        cdef list picked = self._empty()
        cdef Span rest, item
        cdef uint32_t number = 0
        cdef int wire = 0
        rest.at = <const uint8_t *>PyBytes_AS_STRING(message)
        rest.end = rest.at + PyBytes_GET_SIZE(message)
        while rest.at < rest.end:
            if not _tag(&rest, &number, &wire):
                return self._twin.pick(message)
            if number != 1 or wire != DELIMITED:
                if not _skip(&rest, wire):
                    return self._twin.pick(message)
            elif not _span(&rest, &item) or not self._pick_item(item, picked):
                return self._twin.pick(message)
        return tuple(picked)

    def pick_items(self, list items not None):
        cdef list picked = self._empty()
        cdef Span item
        cdef bytes one
        for one in items:
            item.at = <const uint8_t *>PyBytes_AS_STRING(one)
            item.end = item.at + PyBytes_GET_SIZE(one)
            if not self._pick_item(item, picked):
                return self._twin.pick_items(items)
        return tuple(picked)

    def digest(self, bytes message not None):
        cdef uint64_t total = 0, bits = 0
        cdef Span rest, item
        cdef uint32_t number = 0
        cdef int wire = 0
        if not self._single:
            return self._twin.digest(message)
        rest.at = <const uint8_t *>PyBytes_AS_STRING(message)
        rest.end = rest.at + PyBytes_GET_SIZE(message)
        while rest.at < rest.end:
            if not _tag(&rest, &number, &wire):
                return self._twin.digest(message)
            if number != 1 or wire != DELIMITED:
                if not _skip(&rest, wire):
                    return self._twin.digest(message)
            elif not _span(&rest, &item) or not self._read_item(item):
                return self._twin.digest(message)
            else:
                total += self._digest_item(&bits)
        if bits & <uint64_t>0x8080808080808080:
            return self._twin.digest(message)  # beyond ASCII it may not be valid text
        return total

    cdef uint64_t _digest_item(self, uint64_t *bits) noexcept:
        """The columns of the current item."""
        cdef uint64_t mixed = <uint64_t>0x9E3779B97F4A7C15
        cdef int column, kind
        for column in range(self._columns):
            kind = self._kinds[column]
            if kind == TEXT or kind == ENTRY:
                mixed = _mixed_text(mixed, self._texts[column], bits)
            elif kind == INT32:
                mixed = _mixed(mixed, <uint64_t><int64_t><int32_t>self._numbers[column])
            elif kind == UINT32:
                mixed = _mixed(mixed, <uint32_t>self._numbers[column])
            elif kind == FLAG:
                mixed = _mixed(mixed, self._numbers[column] != 0)
            else:
                mixed = _mixed(mixed, self._numbers[column])
        mixed = (mixed ^ (mixed >> 33)) * <uint64_t>0xFF51AFD7ED558CCD
        mixed = (mixed ^ (mixed >> 33)) * <uint64_t>0xC4CEB9FE1A85EC53
        return mixed ^ (mixed >> 33)

    cdef list _empty(self):
        """Return the columns before any item."""
        kinds = [self._kinds[column] for column in range(self._columns)]
        return [new_array("q") if kind >= HELD_INT64 else [] for kind in kinds]

    cdef bint _pick_item(self, Span item, list picked) except -1:
        """Append the requested fields of an item; return false for unusual input."""
        try:
            if not self._read_item(item):
                return False
            self._put_item(item, picked)
        except UnicodeDecodeError:
            return False
        return True

    cdef bint _read_item(self, Span item) except -1:
        """Fill the columns of the current item; return false for unusual input."""
        cdef int column
        for column in range(self._columns):
            self._texts[column].at = self._texts[column].end = item.end
            self._numbers[column] = 0
        self._lists = None
        self._seen = 0
        return self._read(item, 0)

    cdef bint _read(self, Span rest, int level) except -1:
        cdef uint32_t number = 0
        cdef int wire = 0, kind, column
        cdef bint delimited
        cdef const Action *action
        cdef Span span
        while rest.at < rest.end:
            if not _tag(&rest, &number, &wire):
                return False
            action = &self._table[level].actions[number if number < NUMBERS else 0]
            kind, column = action.kind, action.column
            delimited = kind <= ENTRY or kind == MESSAGES or kind == INSIDE
            if kind == 0 or wire != (DELIMITED if delimited else VARINT):
                if not _skip(&rest, wire):
                    return False
                continue
            if wire == VARINT:
                if not _varint(&rest, &self._numbers[column], 10):
                    return False
                continue
            if not _span(&rest, &span):
                return False
            if kind == INSIDE:
                self._seen |= <uint32_t>1 << action.level
                if not self._read(span, action.level):
                    return False
            elif kind == TEXTS:
                self._add(column, PyUnicode_DecodeUTF8(<const char *>span.at, span.end - span.at, NULL))
            elif kind == MESSAGES:
                self._add(column, PyBytes_FromStringAndSize(<const char *>span.at, span.end - span.at))
            elif kind == TEXT:
                self._texts[column] = span
            elif not self._read_entry(column, span):
                return False
        return True

    cdef bint _read_entry(self, int column, Span entry) except -1:
        cdef Span key, value
        cdef bytes wanted
        if not _entry(entry, &key, &value):
            return False
        if key.at == NULL:
            return True
        while column != NONE:
            wanted = self._keys[column]
            if (PyBytes_GET_SIZE(wanted) == key.end - key.at
                    and memcmp(PyBytes_AS_STRING(wanted), key.at, key.end - key.at) == 0):
                self._texts[column] = value
            column = self._next[column]
        return True

    cdef int _add(self, int column, object part) except -1:
        if self._lists is None:
            self._lists = [[] for _ in range(self._columns)]
        PyList_Append(<list>self._lists[column], part)
        return 0

    cdef int _put_item(self, Span item, list picked) except -1:
        cdef int column, kind
        cdef Span text
        cdef uint64_t number
        cdef object value
        for column in range(self._columns):
            kind, text, number = self._kinds[column], self._texts[column], self._numbers[column]
            if kind == TEXT or kind == ENTRY:
                value = PyUnicode_DecodeUTF8(<const char *>text.at, text.end - text.at, NULL)
            elif kind == TEXTS or kind == MESSAGES:
                value = () if self._lists is None else tuple(<list>self._lists[column])
            elif kind == WHOLE:
                value = PyBytes_FromStringAndSize(<const char *>item.at, item.end - item.at)
            elif kind == INT64:
                value = <int64_t>number
            elif kind == UINT64:
                value = number
            elif kind == INT32:
                value = <int32_t>number
            elif kind == UINT32:
                value = <uint32_t>number
            elif kind == FLAG:
                value = number != 0
            else:
                self._put_held(column, number, picked[column])
                continue
            PyList_Append(picked[column], value)
        return 0

    cdef int _put_held(self, int column, uint64_t number, array.array values) except -1:
        cdef Py_ssize_t count = len(values)
        array.resize_smart(values, count + 1)
        if not self._seen >> self._holders[column] & 1:
            values.data.as_longlongs[count] = INT64_MIN
        elif self._kinds[column] == HELD_INT64:
            values.data.as_longlongs[count] = <int64_t>number
        else:
            values.data.as_longlongs[count] = <int64_t>min(number, <uint64_t>INT64_MAX)
        return 0
