"""The state machine: twin and compiled form through the same random lives of a container."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.probing import _state_c as compiled
from engine._fast.probing import _state_py as twin
from engine._fast.probing._state_py import (
    END,
    FAILURE,
    LIVENESS,
    PROBE,
    READINESS,
    RETRY,
    RUNNING,
    SUCCESS,
    WAIT,
)

FORMS = pytest.mark.parametrize("form", [twin, compiled], ids=["twin", "compiled"])
observations = st.builds(
    twin.ProbeObservation,
    pod_known=st.sampled_from([True, True, True, False]),
    phase_terminal=st.sampled_from([False] * 9 + [True]),
    container=st.sampled_from([1, 1, 1, 1, 2, 0]),
    state=st.sampled_from([RUNNING] * 4 + [twin.WAITING, twin.TERMINATED]),
    started=st.booleans(),
    started_at_ms=st.sampled_from([0, 5_000, 60_000]),
    deleted=st.sampled_from([False] * 4 + [True]),
)
lives = st.lists(
    st.tuples(observations, st.integers(0, 70_000), st.lists(st.integers(0, 4), max_size=4)), max_size=30
)


@settings(max_examples=250, deadline=None)
@given(
    st.integers(0, 2),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0, 500, 30_000]),
    st.booleans(),
    lives,
)
def test_compiled_agrees_with_twin(type, failures, successes, delay, never, life):
    machines = [
        form.ProbeState(
            type,
            failure_threshold=failures,
            success_threshold=successes,
            initial_delay_ms=delay,
            never_restarts=never,
        )
        for form in (twin, compiled)
    ]
    for seen, now, outcomes in life:
        results = [
            machine.tick(seen, now, initial=outcomes[0] % 4 if outcomes else 0) for machine in machines
        ]
        assert results[0] == results[1]
        if results[0][0] == PROBE:
            for outcome in outcomes:
                answers = [machine.finish(outcome) for machine in machines]
                assert answers[0] == answers[1]
                if answers[0][0] != RETRY:
                    break
        starting = [machine.is_starting(seen) for machine in machines]
        assert starting[0] == starting[1]
        for name in ("container", "published", "on_hold", "last", "run"):
            assert getattr(machines[0], name) == getattr(machines[1], name), name


@FORMS
def test_an_initial_result_of_an_earlier_agent_is_published_first(form):
    state = form.ProbeState(READINESS)
    seen = twin.ProbeObservation(container=1, state=RUNNING, started=True)
    assert state.tick(seen, 0, initial=SUCCESS) == (PROBE, [SUCCESS])
    assert state.finish(twin.OUTCOME_FAILURE) == (twin.COUNTED, [])


@FORMS
def test_deletion_ends_liveness_and_not_readiness(form):
    seen = twin.ProbeObservation(container=1, state=RUNNING, started=True, deleted=True)
    assert form.ProbeState(LIVENESS).tick(seen, 0) == (END, [SUCCESS])
    assert form.ProbeState(READINESS).tick(seen, 0) == (PROBE, [FAILURE])


@FORMS
def test_the_run_outlives_the_container(form):
    state = form.ProbeState(LIVENESS, failure_threshold=3)
    updates = []
    for container in (1, 1, 2):
        state.tick(twin.ProbeObservation(container=container, state=RUNNING, started=True), 0)
        updates = state.finish(twin.OUTCOME_FAILURE)[1]
    assert updates == [FAILURE]
    assert state.on_hold
    assert state.tick(twin.ProbeObservation(container=2, state=RUNNING, started=True), 0) == (WAIT, [])
