"""The native probe loop: timers, sockets and state machines on a thread that never runs Python.

`run` is the body of that thread and releases the GIL throughout. All other methods are called from
other threads and hold the loop's lock briefly. News for Python waits in the probes until
`drain`; an eventfd (`fileno`) signals it, once per batch.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strdup

import os
import socket

from engine._fast.probing._state cimport (
    OUTCOME_ERROR, PROBE_INITIAL, observation, probe_observation, probe_state,
)

cdef extern from "run.h" nogil:
    enum:
        CONTAINER_ID_LIMIT
        KIND_EXEC
        KIND_H2C
        KIND_LIBRARY
        KIND_TCP
        NEWS_OUTCOME
        PROBE_BUCKETS
    const uint64_t DURATION_BOUNDS[11]
    const uint64_t LATENESS_BOUNDS[11]
    ctypedef struct text_part:
        const char *at
        uint32_t len
    ctypedef struct probe_text:
        pass
    ctypedef struct probe_texts:
        uint32_t stored
    ctypedef struct probe_target:
        char *container
    ctypedef struct timer:
        uint64_t expires
    ctypedef struct probe:
        timer tick
        probe_text *text
        char *excerpt
        probe_target target
        probe_state state
        uint64_t period_ns
        uint64_t start_period_ns
        uint64_t timeout_ns
        uint64_t began_ns
        uint64_t duration_sum_us
        uint64_t cpu_ns
        uint64_t successes
        uint32_t others[4]
        uint32_t durations[12]
        uint32_t duration_us
        uint32_t lateness_us
        uint32_t late
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
        char *request
        uint32_t request_len
    ctypedef struct probe_queue:
        uint32_t length
    ctypedef struct sockaddr_un:
        uint16_t sun_family
        char sun_path[108]
    ctypedef struct probe_loop:
        probe_texts texts
        probe_queue waiting
        probe_queue waiting_for_runtime
        sockaddr_un runtime
        uint32_t capacity
        uint32_t registered
        uint32_t allocated
        uint32_t open
        uint32_t most_open
        uint32_t limit
        uint32_t execs
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
        uint64_t networks_entered
        uint64_t early_failures
    int loop_open(probe_loop *, uint32_t, uint32_t)
    void loop_close(probe_loop *)
    void loop_close_descriptors(probe_loop *)
    void loop_run(probe_loop *)
    void loop_stop(probe_loop *)
    void loop_lock(probe_loop *)
    void loop_unlock(probe_loop *)
    probe *loop_add(probe_loop *)
    probe *loop_probe(const probe_loop *, uint32_t)
    void loop_remove(probe_loop *, probe *)
    void loop_observe(probe_loop *, probe *, const probe_observation *)
    void loop_trigger(probe_loop *, probe *)
    probe *loop_next_news(probe_loop *)
    void loop_notify(probe_loop *)
    void eventfd_clear(int)
    void probe_schedule(probe_loop *, probe *, uint64_t, uint64_t)
    uint64_t grid_of(const probe_loop *l, const probe *p, uint64_t period_ns)
    void probe_outcome(probe_loop *, probe *, uint8_t, uint8_t, int32_t, const char *, uint32_t)
    void probe_drop_excerpt(probe *)
    void probe_drop_target(probe_loop *, probe *)
    probe_text *text_take(probe_texts *, const text_part *)
    int request_compose(connection *, const probe *)
    void probe_abandon(probe_loop *, probe *)
    void probe_set_address(probe *, int, const char *, uint16_t)
    void probe_set_network(probe_loop *, probe *, int)
    void loop_poke(probe_loop *)
    uint64_t monotonic_ns()

BOUNDS = tuple(DURATION_BOUNDS[i] / 1e9 for i in range(11))
LATENESS = tuple(LATENESS_BOUNDS[i] / 1e9 for i in range(11))
PROBE_BYTES = sizeof(probe)
CONNECTION_BYTES = sizeof(connection)

cdef uint64_t _ns(double seconds):
    return <uint64_t>(seconds * 1e9 + 0.5)


cdef text_part _part(bytes text):
    return text_part(<char *>text, <uint32_t>len(text))


cdef class ProbeLoop:
    """Probes by key.

    `max_connections` bounds the open sockets, `max_execs` those of them for commands in the runtime; further
    probes wait.
    """

    cdef probe_loop *_loop
    cdef object __weakref__

    def __cinit__(self, *, int max_connections=1024, int max_execs=32):
        if max_connections < 1 or max_execs < 1:
            raise ValueError("max_connections and max_execs must be at least 1")
        self._loop = <probe_loop *>malloc(sizeof(probe_loop))
        if self._loop == NULL:
            raise MemoryError
        cdef int error = loop_open(self._loop, <uint32_t>max_connections, <uint32_t>max_execs)
        if error:
            raise OSError(error, os.strerror(error))

    def __dealloc__(self):
        if self._loop != NULL:
            loop_close(self._loop)
            free(self._loop)

    def run(self):
        """Probe until `stop`. Run it as the target of a dedicated thread."""
        with nogil:
            loop_run(self._loop)

    def stop(self):
        loop_stop(self._loop)

    def close(self):
        """Close every descriptor after `run` has ended. Counters and states stay readable."""
        self._lock()
        if not self._loop.running:
            loop_close_descriptors(self._loop)
        loop_unlock(self._loop)

    def fileno(self):
        return self._loop.news_fd

    def add(self, *, int type, int kind, double period, double timeout, int failure_threshold,
            int success_threshold, double initial_delay, bint never_restarts, double first_in,
            double start_period=0.0):
        """Register a probe (times in seconds) whose first tick is `first_in` from now. Returns its key.

        `start_period` is the period until a container has succeeded once; 0: it is no other.
        """
        if not 0 <= type <= 2 or not 0 <= kind <= KIND_H2C or not period > 0 or not timeout > 0:
            raise ValueError("a probe needs a type, a kind, a period and a timeout")
        self._lock()
        cdef probe *p = loop_add(self._loop)
        if p == NULL:
            loop_unlock(self._loop)
            raise MemoryError
        p.kind = <uint8_t>kind
        p.period_ns = _ns(period)
        p.timeout_ns = _ns(timeout)
        p.start_period_ns = _ns(start_period) if start_period < period else 0
        p.state.type = <uint8_t>type
        p.state.failure_threshold = failure_threshold
        p.state.success_threshold = success_threshold
        p.state.initial_delay_ms = <int64_t>(initial_delay * 1000)
        p.state.never_restarts = never_restarts
        p.initial = PROBE_INITIAL[type]
        probe_schedule(self._loop, p, monotonic_ns() + _ns(first_in), grid_of(self._loop, p, p.period_ns))
        cdef uint32_t key = p.key
        loop_unlock(self._loop)
        return key

    def runtime(self, bytes path):
        """The unix socket on which the container runtime listens for exec probes."""
        if not 0 < len(path) < 108:
            raise ValueError(f"{path!r} is not the path of a unix socket")
        self._lock()
        self._loop.runtime.sun_family = socket.AF_UNIX
        memcpy(self._loop.runtime.sun_path, <char *>path, <size_t>len(path) + 1)
        loop_unlock(self._loop)

    def target(self, uint32_t key, str address, int port, bytes head=b"", bytes name=b"", bytes tail=b"", *,
               bytes url_host=b"", int network=-1):
        """Set the address and the request of a probe.

        TCP sends nothing. HTTP sends the path, the Host header (empty: the address) and the other headers;
        gRPC and h2c the bytes before and after the :authority (`name`, empty: the address). `url_host`
        overrides the host of the URL. `network` is a descriptor of the network namespace, which must stay
        open until the probe has another target or none; -1 is the node's namespace.
        """
        cdef int family = socket.AF_INET6 if ":" in address else socket.AF_INET
        cdef bytes packed = socket.inet_pton(family, address.partition("%")[0])
        if not 0 < port < 65536:
            raise ValueError(f"port {port} is not one of 1 to 65535")
        cdef probe *p = self._retarget(key, head, name, tail, url_host)
        if p.kind != KIND_EXEC and p.kind != KIND_LIBRARY:
            probe_set_address(p, family, packed, <uint16_t>port)
            probe_set_network(self._loop, p, network)
        loop_unlock(self._loop)

    def target_container(self, uint32_t key, bytes container_id, bytes head, bytes tail):
        """Set the command's container: the bytes before and after its id in the ExecSync call."""
        if not 0 < len(container_id) <= CONTAINER_ID_LIMIT or b"\0" in container_id:
            raise ValueError(f"{container_id!r} is not a container's id")
        cdef char *copy = strdup(container_id)
        if copy == NULL:
            raise MemoryError
        cdef probe *p
        try:
            p = self._retarget(key, head, b"", tail, b"")
        except BaseException:
            free(copy)
            raise
        if p.kind == KIND_EXEC and self._loop.runtime.sun_path[0]:
            p.target.container = copy
            p.has_target = 1
        else:
            free(copy)
        loop_unlock(self._loop)

    cdef probe *_retarget(self, uint32_t key, bytes head, bytes name, bytes tail, bytes url_host) except NULL:
        """Change a probe's text and clear its target, with the lock held."""
        cdef text_part[4] parts
        parts[0], parts[1], parts[2], parts[3] = _part(head), _part(name), _part(tail), _part(url_host)
        cdef probe *p = self._take(key)
        cdef probe_text *text = NULL
        if p.kind != KIND_TCP:
            text = text_take(&self._loop.texts, parts)
            if text == NULL:
                loop_unlock(self._loop)
                raise MemoryError
        probe_abandon(self._loop, p)
        loop_poke(self._loop)
        probe_drop_target(self._loop, p)
        p.text = text
        return p

    def request(self, uint32_t key):
        """Return the first bytes that the probe sends; empty without a target."""
        cdef connection c
        memset(&c, 0, sizeof(c))
        cdef probe *p = self._take(key)
        cdef bint composed = bool(p.has_target) and request_compose(&c, p)
        loop_unlock(self._loop)
        try:
            return c.request[:c.request_len] if composed else b""
        finally:
            free(c.request)

    def untarget(self, uint32_t key):
        """Remove the target: probes return an error until there is one."""
        cdef probe *p = self._take(key)
        probe_abandon(self._loop, p)
        loop_poke(self._loop)
        probe_drop_target(self._loop, p)
        probe_set_network(self._loop, p, -1)
        loop_unlock(self._loop)

    def observe(self, uint32_t key, seen, *, int initial=0):
        """Tell what is known (`_state_py.Observation`); `initial` is a new container's first result."""
        cdef probe_observation known = observation(seen)
        cdef probe *p = self._take(key)
        p.initial = <uint8_t>(initial or PROBE_INITIAL[p.state.type])
        loop_observe(self._loop, p, &known)
        loop_poke(self._loop)
        loop_unlock(self._loop)

    def trigger(self, uint32_t key):
        """Run the probe now, and start its period from here."""
        loop_trigger(self._loop, self._take(key))
        loop_unlock(self._loop)

    def finish(self, uint32_t key, uint32_t generation, int outcome, int reason=0, int detail=0):
        """Record the outcome of a probe that a library ran. Returns False if the probe was removed."""
        if not 0 <= outcome <= OUTCOME_ERROR:
            raise ValueError(f"outcome {outcome} is not one of 0 to {OUTCOME_ERROR}")
        self._lock()
        cdef probe *p = loop_probe(self._loop, key)
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
        """Return up to `most` news: (key, generation, news, published, container, outcome, reason,
        detail, excerpt). If more are left, the eventfd is raised again.
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
            probe_drop_excerpt(p)
        loop_notify(self._loop)
        loop_unlock(self._loop)
        return news

    def info(self, uint32_t key):
        """Describe a probe: state, streak, last duration and lateness, time to the next run (seconds)."""
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
            "duration": p.duration_us / 1e6,
            "lateness": p.lateness_us / 1e6,
            "late": p.late,
            "cpu": p.cpu_ns / 1e9,
            "elapsed": (now - p.began_ns) / 1e9 if p.running and p.began_ns else 0.0,
            "next": max(0.0, p.tick.expires / 1e3 - now / 1e9),
            "outcomes": (p.successes, p.others[0], p.others[1], p.others[2], p.others[3]),
            "outcome": p.outcome,
            "reason": p.reason,
            "detail": p.detail,
        }
        loop_unlock(self._loop)
        return found

    def counters(self):
        """Return (key, outcomes, duration buckets, sum of durations in seconds) of all probes."""
        cdef uint32_t i
        cdef probe *p
        cdef list found = []
        self._lock()
        for i in range(self._loop.capacity):
            p = loop_probe(self._loop, i)
            if p != NULL:
                found.append((
                    i,
                    (p.successes, p.others[0], p.others[1], p.others[2], p.others[3]),
                    [p.durations[j] for j in range(PROBE_BUCKETS)],
                    p.duration_sum_us / 1e6,
                ))
        loop_unlock(self._loop)
        return found

    def stats(self):
        """Describe the whole loop."""
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
            "queued": loop.waiting.length + loop.waiting_for_runtime.length,
            "open_connections": loop.open,
            "most_open_connections": loop.most_open,
            "max_connections": loop.limit,
            "open_execs": loop.execs,
            "stored_texts": loop.texts.stored,
            "allocated_connections": loop.allocated,
            "notifications": loop.notifications,
            "wakeups": loop.wakeups,
            "networks_entered": loop.networks_entered,
            "early_failures": loop.early_failures,
            "kept_waiting": loop.lag_ns / 1e9,
        }
        loop_unlock(self._loop)
        return found

    cdef void _lock(self) noexcept:
        # Waits without the GIL: the lock's holder may be a Python thread that needs the GIL to release it.
        with nogil:
            loop_lock(self._loop)

    cdef probe *_take(self, uint32_t key) except NULL:
        """Return the probe, with the lock held."""
        self._lock()
        cdef probe *p = loop_probe(self._loop, key)
        if p == NULL:
            loop_unlock(self._loop)
            raise KeyError(key)
        return p
