"""Compiled reader of ListAndWatch messages; the rule is in `_device_list_py`.

Ids and health are compared as bytes in place: no Python object is made for a device that is already
known. The reader handles the wire format's ordinary case and hands anything else (unknown groups, text
that is not ASCII, lengths past the end) to the twin, which lets the protobuf library decide.
"""

import numpy as np

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from engine._fast.devices import _device_list_py
from engine._fast.devices._device_list_py import DeviceList, read_topology

cdef enum:
    ABSENT = 0
    UNHEALTHY = 1
    HEALTHY = 2
    EMPTY_SLOT = -1

cdef struct Text:
    const unsigned char *at
    Py_ssize_t size

cdef struct Cursor:
    const unsigned char *at
    const unsigned char *end


cdef inline bint _varint(Cursor *cursor, uint64_t *value) noexcept nogil:
    """Read a varint of up to 9 bytes; return false if there is none."""
    cdef int shift = 0
    cdef unsigned char byte
    value[0] = 0
    # Nine bytes hold 63 bits, more than any size or tag. A tenth is left to the protobuf library.
    while shift < 63:
        if cursor.at == cursor.end:
            return False
        byte = cursor.at[0]
        cursor.at += 1
        value[0] |= <uint64_t> (byte & 0x7F) << shift
        if not byte & 0x80:
            return True
        shift += 7
    return False


cdef inline bint _bytes(Cursor *cursor, Text *text) noexcept nogil:
    """Read a length and that many bytes; return false if the message ends before."""
    cdef uint64_t size = 0
    if not _varint(cursor, &size) or size > <uint64_t> (cursor.end - cursor.at):
        return False
    text.at = cursor.at
    text.size = <Py_ssize_t> size
    cursor.at += size
    return True


cdef inline bint _skip(Cursor *cursor, uint64_t tag) noexcept nogil:
    """Skip an unknown field; return false for groups and other unusual input."""
    cdef uint64_t ignored = 0
    cdef Text text
    cdef int kind = tag & 7
    cdef Py_ssize_t size
    if tag >> 3 == 0 or tag > 0xFFFFFFFFull:
        return False
    if kind == 0:
        return _varint(cursor, &ignored)
    if kind == 2:
        return _bytes(cursor, &text)
    if kind == 1 or kind == 5:
        size = 8 if kind == 1 else 4
        if cursor.end - cursor.at < size:
            return False
        cursor.at += size
        return True
    return False


cdef inline bint _ascii(Text text) noexcept nogil:
    cdef Py_ssize_t i
    cdef unsigned char seen = 0
    for i in range(text.size):
        seen |= text.at[i]
    return seen < 0x80


cdef inline uint32_t _hash(Text text) noexcept nogil:
    cdef uint32_t value = 2166136261u
    cdef Py_ssize_t i
    for i in range(text.size):
        value = (value ^ text.at[i]) * 16777619u
    return value ^ (value >> 15)


cdef inline bint _same(Text a, Text b) noexcept nogil:
    return a.size == b.size and memcmp(a.at, b.at, a.size) == 0


cdef class DeviceIndex:
    cdef list _ids
    cdef dict _by_encoding, _by_nodes
    cdef list _nodes
    cdef Text *_texts
    cdef int32_t *_slots
    cdef uint32_t _mask
    cdef int32_t _known
    cdef int32_t[::1] _order
    cdef int32_t[::1] _last_topology
    cdef list _encodings
    cdef object _twin

    def __cinit__(self, ids):
        cdef Py_ssize_t i
        cdef uint32_t slots = 16
        self._ids = [id.encode() for id in ids]
        self._known = <int32_t> len(self._ids)
        # At most half full, so that a search for an unknown id soon meets an empty slot.
        while slots < 2 * len(self._ids):
            slots *= 2
        self._mask = slots - 1
        self._texts = <Text *> PyMem_Malloc(max(1, self._known) * sizeof(Text))
        self._slots = <int32_t *> PyMem_Malloc(slots * sizeof(int32_t))
        if self._texts == NULL or self._slots == NULL:
            raise MemoryError
        memset(self._slots, 0xFF, slots * sizeof(int32_t))
        for i in range(self._known):
            self._texts[i].at = <const unsigned char *> PyBytes_AS_STRING(self._ids[i])
            self._texts[i].size = PyBytes_GET_SIZE(self._ids[i])
            self._insert(<int32_t> i)
        self._by_encoding = {}
        self._by_nodes = {}
        self._nodes = [None]
        self._encodings = [None]
        self._order = np.arange(self._known, dtype=np.int32)
        self._last_topology = np.zeros(self._known, np.int32)

    def __dealloc__(self):
        PyMem_Free(self._texts)
        PyMem_Free(self._slots)

    cdef void _insert(self, int32_t row) noexcept nogil:
        cdef uint32_t slot = _hash(self._texts[row]) & self._mask
        while self._slots[slot] != EMPTY_SLOT:
            slot = (slot + 1) & self._mask
        self._slots[slot] = row

    cdef inline int32_t _find(self, Text id) noexcept nogil:
        cdef uint32_t slot = _hash(id) & self._mask
        cdef int32_t row
        while True:
            row = self._slots[slot]
            if row == EMPTY_SLOT or _same(self._texts[row], id):
                return row
            slot = (slot + 1) & self._mask

    def nodes(self, int topology):
        return self._nodes[topology]

    def intern(self, nodes):
        if nodes is None:
            return 0
        number = self._by_nodes.setdefault(nodes, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(nodes)
            self._encodings.append(None)
        return number

    cdef int32_t _topology(self, Text encoding, int32_t guess) except -1:
        """Return the number of a serialized TopologyInfo; `guess` is the device's last one."""
        cdef bytes key = self._encodings[guess]
        cdef Text known
        if key is not None:
            known.at = <const unsigned char *> PyBytes_AS_STRING(key)
            known.size = PyBytes_GET_SIZE(key)
            if _same(known, encoding):
                return guess
        key = encoding.at[:encoding.size]
        number = self._by_encoding.get(key)
        if number is None:
            number = self.intern(read_topology(key))
            # A plugin may encode the same nodes in any number of ways; not all of them are remembered.
            if len(self._by_encoding) < 65536:
                self._by_encoding[key] = number
            if self._encodings[number] is None:
                self._encodings[number] = key
        return number

    def read(self, bytes message):
        try:
            result = self._read(message)
        except Exception:  # the protobuf library's DecodeError from a nested message
            result = None
        return result if result is not None else self._read_by_rule(message)

    def _read_by_rule(self, bytes message):
        """Read with the twin, using the topology numbers of this index."""
        if self._twin is None:
            self._twin = _device_list_py.DeviceIndex([id.decode() for id in self._ids])
        listed = self._twin.read(message)
        numbers = [self.intern(self._twin.nodes(n)) for n in range(int(listed.topology.max(initial=0)) + 1)]
        topology = np.array(numbers, np.int32)[listed.topology]
        return DeviceList(
            listed.state, topology, listed.new_ids, listed.duplicates, listed.nameless, listed.odd
        )

    cdef Py_ssize_t _devices_in(self, bytes message) noexcept:
        """Count the devices in a message; the count is too low if the message is malformed."""
        cdef Cursor cursor
        cdef uint64_t tag = 0
        cdef Text device
        cdef Py_ssize_t count = 0
        cursor.at = <const unsigned char *> PyBytes_AS_STRING(message)
        cursor.end = cursor.at + PyBytes_GET_SIZE(message)
        while cursor.at < cursor.end and _varint(&cursor, &tag):
            if not (_bytes(&cursor, &device) if tag == 10 else _skip(&cursor, tag)):
                break
            count += tag == 10
        return count

    cdef object _read(self, bytes message):
        cdef Cursor outer, inner
        cdef uint64_t tag = 0
        cdef Text device, id, health, topology
        cdef bint has_topology
        cdef int32_t row, number = 0, duplicates = 0, nameless = 0, odd = 0, position = 0
        cdef dict fresh = {}
        cdef list new_ids = []
        cdef Py_ssize_t rows = self._known + self._devices_in(message)
        state_array = np.zeros(rows, np.uint8)
        topology_array = np.zeros(rows, np.int32)
        cdef uint8_t[::1] state = state_array
        cdef int32_t[::1] numbers = topology_array
        cdef int32_t[::1] order = self._order
        cdef uint8_t word
        outer.at = <const unsigned char *> PyBytes_AS_STRING(message)
        outer.end = outer.at + PyBytes_GET_SIZE(message)
        while outer.at < outer.end:
            if not _varint(&outer, &tag):
                return None
            if tag != 10:  # field 1, with a length
                if tag >> 3 == 1 or not _skip(&outer, tag):
                    return None
                continue
            if not _bytes(&outer, &device):
                return None
            id.size = health.size = topology.size = 0
            id.at = health.at = topology.at = NULL
            has_topology = False
            inner.at = device.at
            inner.end = device.at + device.size
            while inner.at < inner.end:
                if not _varint(&inner, &tag):
                    return None
                if tag == 10:
                    if id.at != NULL or not _bytes(&inner, &id):
                        return None
                elif tag == 18:
                    if not _bytes(&inner, &health):
                        return None
                    if not _ascii(health):
                        return None
                elif tag == 26:
                    if has_topology or not _bytes(&inner, &topology):
                        return None
                    has_topology = True
                elif tag >> 3 <= 3 or not _skip(&inner, tag):
                    return None
            if id.size == 0:
                nameless += 1
                if has_topology:
                    self._topology(topology, 0)
                continue
            # Plugins send their devices in the same order: try the row after the last one before the table.
            row = order[position] if position < self._known else -1
            if row < 0 or not _same(self._texts[row], id):
                row = self._find(id)
                if row >= 0 and position < self._known:
                    order[position] = row
            position += 1
            word = HEALTHY if health.size == 7 and memcmp(health.at, b"Healthy", 7) == 0 else UNHEALTHY
            if word == UNHEALTHY and not (health.size == 9 and memcmp(health.at, b"Unhealthy", 9) == 0):
                odd += 1
            # Good guesses: a device's topology hardly ever changes, and new devices often share the last one.
            if row >= 0:
                number = self._topology(topology, self._last_topology[row]) if has_topology else 0
                self._last_topology[row] = number
            else:
                if not _ascii(id):
                    return None
                number = self._topology(topology, number) if has_topology else 0
                key = PyUnicode_DecodeASCII(<const char *> id.at, id.size, NULL)
                row = fresh.setdefault(key, <int32_t> (self._known + len(new_ids)))
                if row == self._known + len(new_ids):
                    new_ids.append(key)
            duplicates += state[row] != ABSENT
            state[row] = word
            numbers[row] = number
        rows = self._known + len(new_ids)
        return DeviceList(
            state_array[:rows], topology_array[:rows], tuple(new_ids), duplicates, nameless, odd
        )
