"""The compiled form of image GC's order and cut; `_image_order_py` states the rule.

Order and cut is a quicksort that works from the left and stops as soon as the sum of sizes reaches the
target: items right of the cut are never sorted.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(list, Py_ssize_t)
    Py_ssize_t PyList_GET_SIZE(list)

cdef enum:
    SMALL = 24  # rows below which shifting beats partitioning

cdef int64_t LARGEST = 0x7fffffffffffffff


cdef struct entry:
    double primary
    double secondary
    int64_t size
    int64_t row


cdef inline bint before(const entry *a, const entry *b) noexcept nogil:
    """Compare without branches: a branch on random keys would be mispredicted half of the time."""
    return (a.primary < b.primary) | ((a.primary == b.primary) & (
        (a.secondary < b.secondary) | ((a.secondary == b.secondary) & (a.row < b.row))))


cdef inline void swap(entry *a, entry *b) noexcept nogil:
    cdef entry kept = a[0]
    a[0] = b[0]
    b[0] = kept


cdef void insertion_sort(entry *items, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef entry item
    for i in range(1, count):
        item = items[i]
        j = i
        while j > 0 and before(&item, &items[j - 1]):
            items[j] = items[j - 1]
            j -= 1
        items[j] = item


cdef Py_ssize_t partition(entry *items, Py_ssize_t count) noexcept nogil:
    """Partition around the median of three and return the pivot's index; smaller items are on its left.

    Moves every item, even if it is in place, because that costs less than a mispredicted branch.
    """
    cdef Py_ssize_t middle = count // 2, last = count - 1, left = 0, i
    cdef entry pivot, item
    if before(&items[middle], &items[0]):
        swap(&items[middle], &items[0])
    if before(&items[last], &items[middle]):
        swap(&items[last], &items[middle])
        if before(&items[middle], &items[0]):
            swap(&items[middle], &items[0])
    pivot = items[middle]
    items[middle] = items[last]
    for i in range(last):
        item = items[i]
        items[i] = items[left]
        items[left] = item
        left += before(&item, &pivot)
    items[last] = items[left]
    items[left] = pivot
    return left


cdef void heap_sort(entry *items, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t start = count // 2, end = count, root, child
    cdef entry item
    while end > 1:
        if start > 0:
            start -= 1
            item = items[start]
        else:
            end -= 1
            item = items[end]
            items[end] = items[0]
        root = start
        child = 2 * root + 1
        while child < end:
            if child + 1 < end and before(&items[child], &items[child + 1]):
                child += 1
            if not before(&item, &items[child]):
                break
            items[root] = items[child]
            root = child
            child = 2 * root + 1
        items[root] = item


cdef inline int count_in(const entry *item, int64_t *freed) noexcept nogil:
    """Add the item's size; return 1."""
    # CRI sizes are uint64 of the runtime's choice; their sum is not to overflow.
    freed[0] = LARGEST if item.size > LARGEST - freed[0] else freed[0] + item.size
    return 1


cdef Py_ssize_t take(entry *items, Py_ssize_t count, int64_t target, int64_t *freed,
                     int depth) noexcept nogil:
    """Sort `items` from the left until the sizes reach `target`; return their number."""
    cdef Py_ssize_t taken, cut
    if count <= SMALL or depth == 0:
        if depth == 0:
            heap_sort(items, count)
        else:
            insertion_sort(items, count)
        for taken in range(count):
            count_in(&items[taken], freed)
            if freed[0] >= target:
                return taken + 1
        return count
    cut = partition(items, count)
    taken = take(items, cut, target, freed, depth - 1)
    # A target of zero is reached by nothing, but takes one row.
    if freed[0] >= target and taken > 0:
        return taken
    taken += count_in(&items[cut], freed)
    if freed[0] >= target:
        return taken
    return taken + take(items + cut + 1, count - cut - 1, target, freed, depth - 1)


def order_and_cut(const double[::1] primary, const double[::1] secondary, const int64_t[::1] size,
                  const uint8_t[::1] eligible, target):
    cdef Py_ssize_t rows = eligible.shape[0], i, count = 0, taken
    if primary.shape[0] < rows or secondary.shape[0] < rows or size.shape[0] < rows:
        raise ValueError("primary, secondary and size must be as long as eligible")
    cdef int64_t wanted = min(target, LARGEST) if target > 0 else 0
    cdef int64_t freed = 0
    cdef entry *items = <entry *>malloc((rows + 1) * sizeof(entry))
    if items == NULL:
        raise MemoryError
    # Twice the logarithm of the rows is quicksort's usual depth. Keys that defeat the median of three would
    # make it quadratic; below this depth, `take` sorts with heaps.
    cdef int depth = 8
    try:
        with nogil:
            for i in range(rows):
                if eligible[i]:
                    items[count].primary = primary[i]
                    items[count].secondary = secondary[i]
                    items[count].size = size[i]
                    items[count].row = i
                    count += 1
            i = count
            while i:
                depth += 2
                i >>= 1
            taken = take(items, count, wanted, &freed, depth) if count else 0
        return [items[i].row for i in range(taken)], freed
    finally:
        free(items)


def spare(const uint8_t[::1] live, const uint8_t[::1] in_use, const uint8_t[::1] pinned,
          const double[::1] last_used, const double[::1] first_detected, double now, double min_age):
    cdef Py_ssize_t rows = live.shape[0], i
    if (in_use.shape[0] < rows or pinned.shape[0] < rows or last_used.shape[0] < rows
            or first_detected.shape[0] < rows):
        raise ValueError("each column must be as long as live")
    mask = bytearray(rows)
    cdef char *flags = PyByteArray_AS_STRING(mask)
    for i in range(rows):
        flags[i] = live[i] and not in_use[i] and not pinned[i] and last_used[i] < now and (
            now - first_detected[i] >= min_age)
    return mask


def disused(const uint8_t[::1] live, const uint8_t[::1] in_use, const uint8_t[::1] pinned,
            const double[::1] last_used, double now, double max_age):
    cdef Py_ssize_t rows = live.shape[0], i
    if in_use.shape[0] < rows or pinned.shape[0] < rows or last_used.shape[0] < rows:
        raise ValueError("each column must be as long as live")
    mask = bytearray(rows)
    cdef char *flags = PyByteArray_AS_STRING(mask)
    for i in range(rows):
        flags[i] = live[i] and not in_use[i] and not pinned[i] and (
            last_used[i] == 0 or now - last_used[i] > max_age)
    return mask


cdef inline Py_ssize_t row_of(dict index, object name, Py_ssize_t limit) except -2:
    """Return the row of a name, or -1."""
    cdef PyObject *found = PyDict_GetItemWithError(index, name)
    cdef Py_ssize_t row
    if found == NULL:
        return -1
    row = <object>found
    if row < 0 or row >= limit:
        raise IndexError(f"row {row} of {limit}")
    return row


def match(dict index not None, list names not None, list items not None, list known not None,
          uint8_t[::1] marks):
    cdef Py_ssize_t position, row, limit = min(marks.shape[0], PyList_GET_SIZE(known))
    if PyList_GET_SIZE(items) < PyList_GET_SIZE(names):
        raise ValueError("items must be as long as names")
    changed = []
    for position in range(PyList_GET_SIZE(names)):
        row = row_of(index, <object>PyList_GET_ITEM(names, position), limit)
        if row >= 0:
            marks[row] = 1
        # Identity is enough: a message that did not change is the same object, and a false alarm costs only
        # time.
        if row < 0 or PyList_GET_ITEM(known, row) != PyList_GET_ITEM(items, position):
            changed.append(position)
    return changed


def mark(dict index not None, list names not None, uint8_t[::1] marks):
    cdef Py_ssize_t position, row
    cdef list strangers = []
    for position in range(PyList_GET_SIZE(names)):
        row = row_of(index, <object>PyList_GET_ITEM(names, position), marks.shape[0])
        if row >= 0:
            marks[row] = 1
        else:
            strangers.append(<object>PyList_GET_ITEM(names, position))
    return strangers
