"""Compiled cgroup values over columns; the rules are in `_cgroup_values_py`."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

cdef enum:
    LIVE = 1
    CPU_LIMITED = 64
    MEMORY_LIMITED = 128
    BEST_EFFORT = 0
    BURSTABLE = 1
    GUARANTEED = 2
    INIT = 1
    SIDECAR = 2
    NODE_CRITICAL = 4
    NONE = -1
    MAX_SHARES = 262144

cdef extern from *:
    """
    static inline int64_t kb_percent(int64_t amount, int64_t percent) {
        return (int64_t)((__int128)amount * percent / 100);
    }
    /* Whole thousandths of capacity, rounded down. The quotient of doubles is off by at most one,
       which the remainder shows; a 64-bit division would cost several times as much. */
    static inline int64_t kb_thousandths(int64_t request, int64_t capacity, double per_byte) {
        int64_t scaled = request * 1000;
        int64_t guess = (int64_t)((double)scaled * per_byte);
        int64_t rest = scaled - guess * capacity;
        return guess + (rest >= capacity) - (rest < 0);
    }
    """
    int64_t kb_percent(int64_t amount, int64_t percent) nogil
    int64_t kb_thousandths(int64_t request, int64_t capacity, double per_byte) nogil


cdef inline int32_t _shares(int64_t milli) noexcept nogil:
    if milli >= 256000:
        return MAX_SHARES
    cdef int32_t shares = <int32_t> milli * 128 // 125
    return shares if shares > 2 else 2


cdef inline int64_t _quota(int64_t milli, int64_t period) noexcept nogil:
    if milli == 0:
        return 0
    cdef int64_t quota = milli * period // 1000
    return quota if quota > 1000 else 1000


def pod_values(
    const uint8_t[::1] qos,
    const uint8_t[::1] flags,
    const int64_t[::1] cpu_request,
    const int64_t[::1] memory_request,
    const int64_t[::1] cpu_limit,
    const int64_t[::1] memory_limit,
    const uint16_t[::1] weights,
    rules,
    int64_t[:, ::1] out,
):
    cdef bint enforce = rules.enforce_cpu, memory_qos = rules.memory_qos
    cdef int64_t period = rules.quota_period, quota, memory
    cdef Py_ssize_t row
    cdef int32_t shares
    cdef uint8_t flag
    cdef bint whole
    with nogil:
        for row in range(qos.shape[0]):
            flag = flags[row]
            if not flag & LIVE:
                out[0, row] = out[1, row] = out[2, row] = out[3, row] = out[4, row] = 0
                continue
            quota = memory = NONE
            shares = 2
            if qos[row] != BEST_EFFORT:
                whole = qos[row] == GUARANTEED
                shares = _shares(cpu_request[row])
                if whole or flag & CPU_LIMITED:
                    quota = _quota(cpu_limit[row], period) if enforce else <int64_t> 1 << 63
                if whole or flag & MEMORY_LIMITED:
                    memory = memory_limit[row]
            out[0, row] = shares
            out[1, row] = weights[shares]
            out[2, row] = quota
            out[3, row] = memory
            out[4, row] = memory_request[row] if memory_qos else 0


def container_values(
    const int64_t[::1] offsets,
    const uint8_t[::1] qos,
    const uint8_t[::1] flags,
    const int32_t[::1] node,
    const int64_t[::1] cpu_request,
    const int64_t[::1] cpu_limit,
    const int64_t[::1] memory_request,
    const int64_t[::1] memory_limit,
    const int64_t[::1] oom_request,
    const uint8_t[::1] kind,
    const int64_t[::1] capacity,
    const int64_t[::1] allocatable,
    const uint16_t[::1] weights,
    rules,
    int64_t[:, ::1] out,
):
    cdef bint enforce = rules.enforce_cpu, memory_qos = rules.memory_qos
    cdef int64_t period = rules.container_period, page = rules.page_size
    cdef double factor = rules.throttling_factor, per_byte = 0, mark
    cdef int64_t milli, request, limit, ceiling, high, protected, score, smallest, node_capacity = 0
    cdef Py_ssize_t row, i, j
    cdef int32_t shares, last = -1
    with nogil:
        for row in range(qos.shape[0]):
            if not flags[row] & LIVE:
                for i in range(offsets[row], offsets[row + 1]):
                    for j in range(7):
                        out[j, i] = 0
                continue
            if node[row] != last:
                last = node[row]
                node_capacity = capacity[last]
                per_byte = 1.0 / <double> node_capacity if node_capacity > 0 else 0
            smallest = -1
            for i in range(offsets[row], offsets[row + 1]):
                milli = cpu_limit[i] if cpu_request[i] == NONE else cpu_request[i]
                shares = _shares(milli)
                request = memory_request[i]
                limit = memory_limit[i]
                protected = high = 0
                if memory_qos:
                    protected = request
                    ceiling = limit if limit else allocatable[last]
                    if request != limit and ceiling > 0:
                        mark = <double> request + (<double> ceiling - <double> request) * factor
                        high = <int64_t> (<double> <int64_t> mark / <double> page) * page
                        if high <= request:
                            high = 0
                if qos[row] == GUARANTEED or kind[i] & NODE_CRITICAL:
                    score = -997
                elif qos[row] == BEST_EFFORT:
                    score = 1000
                else:
                    request = oom_request[i]
                    if kind[i] & SIDECAR:
                        if smallest < 0:
                            for j in range(offsets[row], offsets[row + 1]):
                                if not kind[j] & (INIT | SIDECAR):
                                    if smallest < 0 or oom_request[j] < smallest:
                                        smallest = oom_request[j]
                        if request < smallest:
                            request = smallest
                    score = 0
                    if node_capacity > 0:
                        score = 1000 - kb_thousandths(request, node_capacity, per_byte)
                    score = 3 if score < 3 else (999 if score > 999 else score)
                out[0, i] = shares
                out[1, i] = weights[shares]
                out[2, i] = _quota(cpu_limit[i], period) if enforce else 0
                out[3, i] = limit
                out[4, i] = score
                out[5, i] = protected
                out[6, i] = high


def level_values(
    const uint8_t[::1] qos,
    const uint8_t[::1] flags,
    const int32_t[::1] node,
    const int64_t[::1] cpu_request,
    const int64_t[::1] memory_request,
    const int64_t[::1] allocatable,
    const uint16_t[::1] weights,
    rules,
    int64_t[:, ::1] out,
):
    cdef bint memory_qos = rules.memory_qos
    cdef int64_t percent = rules.reserved_percent, guaranteed, burstable
    cdef Py_ssize_t row, at
    cdef int32_t shares
    with nogil:
        for at in range(allocatable.shape[0]):
            out[0, at] = out[4, at] = out[5, at] = out[6, at] = 0
        for row in range(qos.shape[0]):
            if flags[row] & LIVE:
                at = node[row]
                out[6, at] += 1
                if qos[row] == BURSTABLE:
                    out[0, at] += cpu_request[row]
                    out[5, at] += memory_request[row]
                elif qos[row] == GUARANTEED:
                    out[4, at] += memory_request[row]
        for at in range(allocatable.shape[0]):
            guaranteed, burstable = out[4, at], out[5, at]
            out[2, at] = out[3, at] = NONE
            if percent >= 0 and allocatable[at] > 0:
                out[2, at] = allocatable[at] - kb_percent(guaranteed, percent)
                out[3, at] = out[2, at] - kb_percent(burstable, percent)
            shares = _shares(out[0, at])
            out[0, at] = shares
            out[1, at] = weights[shares]
            out[4, at] = guaranteed + burstable if memory_qos else 0
            out[5, at] = burstable if memory_qos else 0
