"""The compiled form of a probe worker's rule; `_state_py` states it."""

from libc.stdint cimport int64_t, uint8_t

from engine._fast.probing._state cimport (
    OUTCOME_ERROR, PROBE_INITIAL, observation, probe_finish, probe_is_starting, probe_observation,
    probe_state, probe_tick,
)


cdef class ProbeState:
    """One probe of one container, as the native loop holds it."""

    cdef probe_state _state

    def __init__(self, int type, *, int failure_threshold=3, int success_threshold=1,
                 int64_t initial_delay_ms=0, bint never_restarts=False):
        if not 0 <= type <= 2:
            raise ValueError(f"probe type {type} is not 0, 1 or 2")
        self._state.type = <uint8_t>type
        self._state.failure_threshold = failure_threshold
        self._state.success_threshold = success_threshold
        self._state.initial_delay_ms = initial_delay_ms
        self._state.never_restarts = never_restarts

    def tick(self, seen, int64_t now_ms, int initial=0):
        cdef probe_observation known = observation(seen)
        cdef uint8_t updates[2]
        cdef int count = 0
        cdef uint8_t first = <uint8_t>(initial or PROBE_INITIAL[self._state.type])
        cdef int action = probe_tick(&self._state, &known, now_ms, first, updates, &count)
        return action, [updates[i] for i in range(count)]

    def finish(self, int outcome):
        if not 0 <= outcome <= OUTCOME_ERROR:
            raise ValueError(f"outcome {outcome} is not one of 0 to {OUTCOME_ERROR}")
        cdef uint8_t updates[2]
        cdef int count = 0
        cdef int verdict = probe_finish(&self._state, <uint8_t>outcome, updates, &count)
        return verdict, [updates[i] for i in range(count)]

    def is_starting(self, seen):
        cdef probe_observation known = observation(seen)
        return bool(probe_is_starting(&self._state, &known))

    @property
    def container(self):
        return self._state.container

    @property
    def published(self):
        return self._state.published

    @property
    def on_hold(self):
        return bool(self._state.on_hold)

    @property
    def last(self):
        return self._state.last

    @property
    def run(self):
        return self._state.run
