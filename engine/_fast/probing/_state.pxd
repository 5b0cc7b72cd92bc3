"""The declarations of `state.h` for the compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef extern from "state.h" nogil:
    enum:
        OUTCOME_ERROR
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
        uint8_t attempt
        uint8_t succeeded
    ctypedef struct probe_observation:
        uint64_t container
        int64_t started_at_ms
        uint8_t pod_known
        uint8_t phase_terminal
        uint8_t state
        uint8_t started
        uint8_t deleted
    const uint8_t PROBE_INITIAL[3]
    uint8_t probe_tick(probe_state *, const probe_observation *, int64_t, uint8_t, uint8_t *, int *)
    int probe_is_starting(const probe_state *, const probe_observation *)
    uint8_t probe_finish(probe_state *, uint8_t, uint8_t *, int *)


cdef inline probe_observation observation(seen) except *:
    """Fill the header's struct from a `_state_py.Observation`."""
    cdef probe_observation known
    known.pod_known = <bint>seen.pod_known
    known.phase_terminal = <bint>seen.phase_terminal
    known.container = seen.container
    known.state = seen.state
    known.started = <bint>seen.started
    known.started_at_ms = seen.started_at_ms
    known.deleted = <bint>seen.deleted
    return known
