"""Eviction order as a radix sort over packed keys. The rule is in `_eviction_ranking_py.py`."""

from array import array as new_array

from cpython cimport array
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc


cdef extern from "radix_order.h" nogil:
    ctypedef struct kb_keyed_row:
        uint64_t key
        int32_t row
        int32_t rest
    void kb_radix_sort(kb_keyed_row *rows, kb_keyed_row *spare, int64_t n)


cdef extern from "../pyobject_slots.h":
    ctypedef struct kb_slot:
        pass
    PyObject *kb_slot_get(object, kb_slot *slot, object name)

cdef array.array INTS = new_array("i")
cdef array.array LONGS = new_array("q")
cdef array.array OCTETS = new_array("B")
cdef object METADATA = "metadata"
cdef object UID = "uid"
cdef kb_slot metadata_slot, uid_slot, memory_slot, processes_slot, amount_slot


cdef inline PyObject *attribute(object holder, kb_slot *slot, str name) except NULL:
    """Borrowed from the holder's slot."""
    cdef PyObject *found = kb_slot_get(holder, slot, name)
    if found == NULL:
        raise TypeError(f"{type(holder).__name__} has no slot {name}")
    return found


def look_up(pods, dict usage not None, dict row_of not None, str name not None):
    cdef list listed = pods if type(pods) is list else list(pods)
    cdef Py_ssize_t n = len(listed), i
    cdef kb_slot *slot
    cdef PyObject *uid
    cdef PyObject *found
    if name == "memory":
        slot = &memory_slot
    elif name == "processes":
        slot = &processes_slot
    elif name == "amount":
        slot = &amount_slot
    else:
        raise ValueError(f"{name} is not one of memory, processes, amount")
    rows, amounts, known = (
        array.clone(INTS, n, zero=False), array.clone(LONGS, n, zero=True), array.clone(OCTETS, n, zero=True)
    )
    cdef int32_t[::1] row = rows
    cdef int64_t[::1] amount = amounts
    cdef uint8_t[::1] is_known = known
    for i in range(n):
        found = attribute(listed[i], &metadata_slot, METADATA)
        uid = attribute(<object>found, &uid_slot, UID)
        found = PyDict_GetItemWithError(row_of, <object>uid)
        row[i] = -1 if found == NULL else <int32_t><object>found
        found = PyDict_GetItemWithError(usage, <object>uid)
        if found != NULL:
            found = attribute(<object>found, slot, name)
            if <object>found is not None:
                amount[i], is_known[i] = <object>found, 1
    return rows, amounts, known


cdef inline uint64_t rising(int32_t priority) noexcept nogil:
    # The flipped sign bit puts negative priorities first in an unsigned order.
    return <uint32_t>priority ^ 0x80000000U


cdef inline uint64_t falling(int64_t amount) noexcept nogil:
    """Return a key that sorts larger amounts first; the flipped sign bit puts negative ones last."""
    return ~(<uint64_t>amount ^ (<uint64_t>1 << 63))


cdef void excess_order(const int64_t *usage, const uint8_t *known, const int64_t *request,
                       const int32_t *fraction, const int32_t *priority, bint above_zero, int64_t n,
                       kb_keyed_row *rows, kb_keyed_row *spare) noexcept nogil:
    cdef int64_t i, above
    cdef int32_t position
    cdef uint64_t group
    # A radix sort is stable, so the least significant key comes first: fraction, excess, group and priority.
    for i in range(n):
        rows[i].row = <int32_t>i
        rows[i].rest = fraction[i] if fraction != NULL and known[i] else 0
        rows[i].key = falling(rows[i].rest)
    if fraction != NULL:
        kb_radix_sort(rows, spare, n)
    for i in range(n):
        position = rows[i].row
        rows[i].key = falling(usage[position] - request[position] if known[position] else 0)
    kb_radix_sort(rows, spare, n)
    for i in range(n):
        position = rows[i].row
        group = 0  # without stats; 2 is above the request, 3 within it
        if known[position]:
            above = usage[position] if above_zero else usage[position] - request[position]
            group = 2 if above > 0 or (above == 0 and rows[i].rest > 0 and not above_zero) else 3
        rows[i].key = group << 32 | rising(priority[position])
    kb_radix_sort(rows, spare, n)


cdef void count_order(const int64_t *count, const uint8_t *known, const int32_t *priority, int64_t n,
                      kb_keyed_row *rows, kb_keyed_row *spare) noexcept nogil:
    cdef int64_t i
    cdef int32_t position
    for i in range(n):
        rows[i].row = <int32_t>i
        rows[i].rest = 0
        rows[i].key = falling(count[i] if known[i] else 0)
    kb_radix_sort(rows, spare, n)
    for i in range(n):
        position = rows[i].row
        # The lowest bit puts pods without stats before the others of their priority.
        rows[i].key = rising(priority[position]) << 1 | (known[position] != 0)
    kb_radix_sort(rows, spare, n)


cdef kb_keyed_row *workspace(int64_t n) except NULL:
    # The rows and as many spare ones; one more, because malloc(0) may return NULL.
    cdef kb_keyed_row *rows = <kb_keyed_row *>malloc((2 * n + 1) * sizeof(kb_keyed_row))
    if rows == NULL:
        raise MemoryError
    return rows


cdef taken(const kb_keyed_row *rows, int64_t n):
    order = array.clone(INTS, n, zero=False)
    cdef int32_t[::1] out = order
    cdef int64_t i
    for i in range(n):
        out[i] = rows[i].row
    return order


def same_length(n, *columns):
    for column in columns:
        if column is not None and len(column) != n:
            raise ValueError(f"expected {n} entries in every column, got {len(column)}")


def order_by_excess(const int64_t[::1] usage, const uint8_t[::1] known, const int64_t[::1] request,
                    fraction, const int32_t[::1] priority, bint above_zero=False):
    cdef int64_t n = usage.shape[0]
    same_length(n, known, request, fraction, priority)
    if n == 0:
        return array.clone(INTS, 0, zero=False)
    cdef const int32_t[::1] fractions
    cdef const int32_t *fraction_at = NULL
    if fraction is not None:
        fractions = fraction
        fraction_at = &fractions[0]
    cdef kb_keyed_row *rows = workspace(n)
    try:
        with nogil:
            excess_order(&usage[0], &known[0], &request[0], fraction_at, &priority[0], above_zero, n,
                         rows, rows + n)
        return taken(rows, n)
    finally:
        free(rows)


def order_by_count(const int64_t[::1] count, const uint8_t[::1] known, const int32_t[::1] priority):
    cdef int64_t n = count.shape[0]
    same_length(n, known, priority)
    if n == 0:
        return array.clone(INTS, 0, zero=False)
    cdef kb_keyed_row *rows = workspace(n)
    try:
        with nogil:
            count_order(&count[0], &known[0], &priority[0], n, rows, rows + n)
        return taken(rows, n)
    finally:
        free(rows)
