"""The native loop's timer wheel, with numbered timers; its test has the twin."""

from libc.stdint cimport UINT64_MAX, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from "wheel.h" nogil:
    ctypedef struct timer:
        uint64_t expires
    ctypedef struct timer_wheel:
        uint64_t now
    void wheel_init(timer_wheel *, uint64_t)
    void timer_arm(timer_wheel *, timer *, uint64_t)
    void timer_cancel(timer_wheel *, timer *)
    void wheel_advance(timer_wheel *, uint64_t)
    timer *wheel_take(timer_wheel *)
    uint64_t wheel_next(const timer_wheel *)


cdef class TimerWheel:
    """`size` timers, numbered from 0."""

    cdef timer_wheel _wheel
    cdef timer *_timers
    cdef int _size

    def __cinit__(self, uint64_t now, int size=256):
        wheel_init(&self._wheel, now)
        self._size = size
        self._timers = <timer *>calloc(<size_t>size, sizeof(timer))
        if self._timers == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._timers)

    @property
    def now(self):
        return self._wheel.now

    def arm(self, int timer, uint64_t expires):
        timer_arm(&self._wheel, self._at(timer), expires)

    def cancel(self, int timer):
        timer_cancel(&self._wheel, self._at(timer))

    def advance(self, uint64_t now):
        cdef timer *t
        expired = set()
        wheel_advance(&self._wheel, now)
        while True:
            t = wheel_take(&self._wheel)
            if t == NULL:
                return expired
            expired.add(<int>(t - self._timers))

    def next(self):
        """Return a tick after now and not later than the earliest timer's; None without timers."""
        cdef uint64_t at = wheel_next(&self._wheel)
        return None if at == UINT64_MAX else at

    cdef timer *_at(self, int number) except NULL:
        if not 0 <= number < self._size:
            raise IndexError(number)
        return self._timers + number
