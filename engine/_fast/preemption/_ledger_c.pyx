"""The pods that a node has admitted, against what it has. The rule is in `_ledger_py.py`."""

from libc.stdint cimport INT64_MAX, int64_t


cdef class Ledger:
    cdef const int64_t[:, ::1] requests
    cdef int64_t[::1] used
    cdef const int64_t[::1] limits

    def __cinit__(self, requests, used, limits):
        if not len(requests) == len(used) == len(limits):
            raise ValueError("requests, used and limits must have as many resources")
        self.requests, self.used, self.limits = requests, used, limits

    def fits(self, Py_ssize_t row):
        cdef Py_ssize_t i
        cdef int64_t amount, room
        self.check(row)
        for i in range(self.used.shape[0]):
            amount = self.requests[i, row]
            room = (self.limits[i] if self.limits[i] > 0 else 0) - self.used[i]
            if amount > 0 and amount > room:
                return False
        return True

    def add(self, Py_ssize_t row):
        cdef Py_ssize_t i
        self.check(row)
        for i in range(self.used.shape[0]):
            if self.requests[i, row] > INT64_MAX - self.used[i]:
                return False
        for i in range(self.used.shape[0]):
            self.used[i] += self.requests[i, row]
        return True

    def remove(self, Py_ssize_t row):
        cdef Py_ssize_t i
        self.check(row)
        for i in range(self.used.shape[0]):
            self.used[i] -= self.requests[i, row]

    cdef int check(self, Py_ssize_t row) except -1:
        if row < 0 or row >= self.requests.shape[1]:
            raise IndexError(f"row {row} of {self.requests.shape[1]}")
        return 0
