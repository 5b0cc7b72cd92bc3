"""The native probe loop: timers, sockets and state machines on a thread that never runs Python.

`run` is that thread's whole life and gives up the GIL for all of it. Everything else is called from
other threads and takes the loop's lock for a moment. What Python should know waits in the probes until
`drain`; an eventfd (`fileno`) says that there is something, once per batch.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import os
import socket

cdef extern from "probe_run.h" nogil:
    enum:
        KIND_LIBRARY
        NEWS_DUE
        NEWS_OUTCOME
        OUTCOME_ERROR
        PROBE_BUCKETS
    const uint64_t DURATION_BOUNDS[11]
    const uint64_t LATENESS_BOUNDS[11]
    const uint8_t PROBE_INITIAL[3]
    ctypedef struct probe_observation:
        uint64_t container
        int64_t started_at_ms
        uint8_t pod_known
        uint8_t phase_terminal
        uint8_t state
        uint8_t started
        uint8_t deleted
    ctypedef struct probe_state:
        uint64_t container
        int64_t initial_delay_ms
        int32_t failure_threshold
        int32_t success_threshold
        int32_t run
        uint8_t type
        uint8_t last
        uint8_t published
        uint8_t on_hold
        uint8_t never_restarts
    ctypedef struct probe:
        char *request
        char *excerpt
        probe_state state
        probe_observation seen
        uint64_t period_ns
        uint64_t timeout_ns
        uint64_t due_ns
        uint64_t duration_ns
        uint64_t lateness_ns
        uint64_t counts[5]
        uint64_t late
        uint64_t duration_sum_ns
        uint32_t durations[12]
        uint32_t request_len
        uint32_t path_len
        uint32_t host_len
        uint32_t url_host_len
        uint32_t key
        uint32_t generation
        int32_t detail
        uint16_t excerpt_len
        uint8_t kind
        uint8_t initial
        uint8_t running
        uint8_t news
        uint8_t ended
        uint8_t outcome
        uint8_t reason
        uint8_t has_target
    ctypedef struct connection:
        pass
    ctypedef struct probe_loop:
        probe **probes
        uint32_t capacity
        uint32_t registered
        uint32_t allocated
        uint32_t open
        uint32_t most_open
        uint32_t limit
        uint32_t queue_length
        int news_fd
        uint8_t notified
        uint8_t running
        uint64_t lag_ns
        uint64_t begun
        uint64_t outcomes[5]
        uint64_t redirects
        uint64_t handed_over
        uint64_t late
        uint64_t notifications
        uint64_t wakeups
        uint64_t lateness[12]
        uint64_t lateness_sum_ns
    int loop_open(probe_loop *, uint32_t)
    void loop_close(probe_loop *)
    void loop_hang_up(probe_loop *)
    void loop_run(probe_loop *)
    void loop_stop(probe_loop *)
    void loop_lock(probe_loop *)
    void loop_unlock(probe_loop *)
    probe *loop_add(probe_loop *)
    void loop_remove(probe_loop *, probe *)
    void loop_observe(probe_loop *, probe *, const probe_observation *)
    void loop_trigger(probe_loop *, probe *)
    probe *loop_next_news(probe_loop *)
    void loop_notify(probe_loop *)
    void eventfd_clear(int)
    void probe_schedule(probe_loop *, probe *, uint64_t)
    void probe_outcome(probe_loop *, probe *, uint8_t, uint8_t, int32_t, const char *, uint16_t)
    void probe_abandon(probe_loop *, probe *)
    void probe_set_address(probe *, int, const char *, uint16_t)
    void loop_poke(probe_loop *)
    uint64_t monotonic_ns()

BOUNDS = tuple(DURATION_BOUNDS[i] / 1e9 for i in range(11))
LATENESS = tuple(LATENESS_BOUNDS[i] / 1e9 for i in range(11))
PROBE_BYTES = sizeof(probe)
CONNECTION_BYTES = sizeof(connection)

cdef uint64_t _ns(double seconds):
    return <uint64_t>(seconds * 1e9)


cdef class ProbeLoop:
    """Probes by key. `max_connections` bounds the sockets in flight; what is due beyond it waits."""

    cdef probe_loop *_loop
    cdef object __weakref__

    def __cinit__(self, *, int max_connections=1024):
        if max_connections < 1:
            raise ValueError("max_connections must be at least 1")
        self._loop = <probe_loop *>malloc(sizeof(probe_loop))
        if self._loop == NULL:
            raise MemoryError
        cdef int error = loop_open(self._loop, <uint32_t>max_connections)
        if error:
            raise OSError(error, os.strerror(error))

    def __dealloc__(self):
        if self._loop != NULL:
            loop_close(self._loop)
            free(self._loop)

    def run(self):
        """Probe until `stop`. To be the target of a thread of its own."""
        with nogil:
            loop_run(self._loop)

    def stop(self):
        loop_stop(self._loop)

    def close(self):
        """Give back every descriptor after `run` has ended. Counters and states stay readable."""
        self._lock()
        if not self._loop.running:
            loop_hang_up(self._loop)
        loop_unlock(self._loop)

    def fileno(self):
        return self._loop.news_fd

    def add(self, *, int type, int kind, double period, double timeout, int failure_threshold,
            int success_threshold, double initial_delay, bint never_restarts, double first_in):
        """Register a probe (times in seconds) whose first tick is `first_in` from now. Returns its key."""
        if not 0 <= type <= 2 or not 0 <= kind <= KIND_LIBRARY or not period > 0 or not timeout > 0:
            raise ValueError("a probe needs a type, a kind, a period and a timeout")
        self._lock()
        cdef probe *p = loop_add(self._loop)
        if p == NULL:
            loop_unlock(self._loop)
            raise MemoryError
        p.kind = <uint8_t>kind
        p.period_ns = _ns(period)
        p.timeout_ns = _ns(timeout)
        p.state.type = <uint8_t>type
        p.state.failure_threshold = failure_threshold
        p.state.success_threshold = success_threshold
        p.state.initial_delay_ms = <int64_t>(initial_delay * 1000)
        p.state.never_restarts = never_restarts
        p.initial = PROBE_INITIAL[type]
        probe_schedule(self._loop, p, monotonic_ns() + _ns(first_in))
        cdef uint32_t key = p.key
        loop_unlock(self._loop)
        return key

    def target(self, uint32_t key, str address, int port, bytes path=b"", bytes host=b"", bytes rest=b"", *,
               bytes raw=b""):
        """Where and what to send: `path`, `host` and `rest` for HTTP, `raw` for gRPC, nothing for TCP."""
        cdef int family = socket.AF_INET6 if ":" in address else socket.AF_INET
        cdef bytes packed = socket.inet_pton(family, address.partition("%")[0])
        if not 0 < port < 65536:
            raise ValueError(f"port {port} is not one of 1 to 65535")
        cdef bytes request = raw or (b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + rest)
        cdef bytes url_host = address.encode()
        cdef char *copy = <char *>malloc(len(request) + len(url_host))
        if copy == NULL:
            raise MemoryError
        memcpy(copy, <char *>request, len(request))
        memcpy(copy + len(request), <char *>url_host, len(url_host))
        self._lock()
        cdef probe *p = self._find(key)
        if p == NULL:
            loop_unlock(self._loop)
            free(copy)
            raise KeyError(key)
        probe_abandon(self._loop, p)
        loop_poke(self._loop)
        free(p.request)
        p.request = copy
        p.request_len = <uint32_t>len(request)
        p.path_len = <uint32_t>len(path)
        p.host_len = <uint32_t>len(host)
        p.url_host_len = <uint32_t>len(url_host)
        probe_set_address(p, family, packed, <uint16_t>port)
        loop_unlock(self._loop)

    def untarget(self, uint32_t key):
        """Forget where: probes error until there is a target."""
        cdef probe *p = self._take(key)
        probe_abandon(self._loop, p)
        loop_poke(self._loop)
        p.has_target = 0
        loop_unlock(self._loop)

    def observe(self, uint32_t key, seen, *, int initial=0):
        """Tell what is known (`_probe_state_py.Observation`); `initial` is a new container's first result."""
        cdef probe_observation known
        known.pod_known = <bint>seen.pod_known
        known.phase_terminal = <bint>seen.phase_terminal
        known.container = seen.container
        known.state = seen.state
        known.started = <bint>seen.started
        known.started_at_ms = seen.started_at_ms
        known.deleted = <bint>seen.deleted
        cdef probe *p = self._take(key)
        p.initial = <uint8_t>(initial or PROBE_INITIAL[p.state.type])
        loop_observe(self._loop, p, &known)
        loop_poke(self._loop)
        loop_unlock(self._loop)

    def trigger(self, uint32_t key):
        """Tick now, and count the period from here."""
        loop_trigger(self._loop, self._take(key))
        loop_unlock(self._loop)

    def finish(self, uint32_t key, uint32_t generation, int outcome, int reason=0, int detail=0):
        """The outcome of a probe that a library ran. False when the probe it belongs to is gone."""
        if not 0 <= outcome <= OUTCOME_ERROR:
            raise ValueError(f"outcome {outcome} is not one of 0 to {OUTCOME_ERROR}")
        self._lock()
        cdef probe *p = self._find(key)
        cdef bint current = p != NULL and p.generation == generation and p.running
        if current:
            probe_outcome(self._loop, p, <uint8_t>outcome, <uint8_t>reason, detail, NULL, 0)
            loop_notify(self._loop)
            loop_poke(self._loop)
        loop_unlock(self._loop)
        return bool(current)

    def remove(self, uint32_t key):
        loop_remove(self._loop, self._take(key))
        loop_poke(self._loop)
        loop_unlock(self._loop)

    def drain(self, int most=1024):
        """Up to `most` pieces of news: (key, generation, news, published, container, outcome, reason,
        detail, excerpt). What is left raises the eventfd again.
        """
        cdef list news = []
        cdef probe *p
        self._lock()
        eventfd_clear(self._loop.news_fd)
        self._loop.notified = 0
        while len(news) < most:
            p = loop_next_news(self._loop)
            if p == NULL:
                break
            news.append((
                p.key, p.generation, p.news, p.state.published, p.state.container, p.outcome, p.reason,
                p.detail,
                p.excerpt[:p.excerpt_len] if p.news & NEWS_OUTCOME and p.excerpt_len else b"",
            ))
            p.news = 0
        loop_notify(self._loop)
        loop_unlock(self._loop)
        return news

    def info(self, uint32_t key):
        """One probe as a dict: state, streak, last duration and lateness, time to the next tick (seconds)."""
        cdef probe *p = self._take(key)
        cdef uint64_t now = monotonic_ns()
        found = {
            "container": p.state.container,
            "published": p.state.published,
            "last": p.state.last,
            "run": p.state.run,
            "on_hold": bool(p.state.on_hold),
            "running": bool(p.running),
            "ended": bool(p.ended),
            "duration": p.duration_ns / 1e9,
            "lateness": p.lateness_ns / 1e9,
            "late": p.late,
            "next": max(0.0, (<int64_t>p.due_ns - <int64_t>now) / 1e9),
            "outcomes": tuple([p.counts[i] for i in range(5)]),
            "outcome": p.outcome,
            "reason": p.reason,
            "detail": p.detail,
        }
        loop_unlock(self._loop)
        return found

    def counters(self):
        """All probes' (key, outcomes, duration buckets, sum of durations in seconds), for a scrape."""
        cdef uint32_t i
        cdef probe *p
        cdef list found = []
        self._lock()
        for i in range(self._loop.capacity):
            p = self._loop.probes[i]
            if p != NULL:
                found.append((
                    i,
                    (p.counts[0], p.counts[1], p.counts[2], p.counts[3], p.counts[4]),
                    [p.durations[j] for j in range(PROBE_BUCKETS)],
                    p.duration_sum_ns / 1e9,
                ))
        loop_unlock(self._loop)
        return found

    def stats(self):
        """The loop as a whole."""
        self._lock()
        cdef probe_loop *loop = self._loop
        found = {
            "registered": loop.registered,
            "begun": loop.begun,
            "outcomes": tuple([loop.outcomes[i] for i in range(5)]),
            "late": loop.late,
            "lateness_buckets": [loop.lateness[i] for i in range(PROBE_BUCKETS)],
            "lateness_sum": loop.lateness_sum_ns / 1e9,
            "redirects": loop.redirects,
            "handed_over": loop.handed_over,
            "queued": loop.queue_length,
            "open_connections": loop.open,
            "most_open_connections": loop.most_open,
            "max_connections": loop.limit,
            "allocated_connections": loop.allocated,
            "notifications": loop.notifications,
            "wakeups": loop.wakeups,
            "kept_waiting": loop.lag_ns / 1e9,
        }
        loop_unlock(self._loop)
        return found

    cdef void _lock(self) noexcept:
        # Waited for without the GIL: the holder may be a Python thread that needs it to go on.
        with nogil:
            loop_lock(self._loop)

    cdef probe *_find(self, uint32_t key) noexcept:
        return self._loop.probes[key] if key < self._loop.capacity else NULL

    cdef probe *_take(self, uint32_t key) except NULL:
        """The probe, with the lock held."""
        self._lock()
        cdef probe *p = self._find(key)
        if p == NULL:
            loop_unlock(self._loop)
            raise KeyError(key)
        return p
