"""One pod's life as a table: where every event leads, and what never happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import Bug
from engine.api.lifecycle import PodEnd
from engine.node.pod.life import (
    HOLDING,
    IGNORED,
    OVER,
    STOPPING,
    TRANSITIONS,
    Action,
    LifeEvent,
    LifeState,
    PodLife,
)

END = PodEnd("Evicted", "no room")
ENDED = {LifeState.FINISHED, LifeState.FAILED}
RUNS = {LifeState.ADMITTING, LifeState.WORKING}


def test_every_state_is_reached_and_left():
    reached = {target for target, _ in TRANSITIONS.values()} | {LifeState.ADMITTING}
    assert reached == set(LifeState)
    assert {state for state, _ in TRANSITIONS} == set(LifeState) - {LifeState.REMOVED}
    assert set(LifeState) == HOLDING | OVER
    assert not HOLDING & OVER


def test_no_event_leads_back_from_an_end():
    for (state, _), (target, _) in TRANSITIONS.items():
        if state in ENDED:
            assert target is LifeState.LEAVING


def test_a_pod_that_is_not_wanted_never_is_again():
    unwanted = {
        LifeState.LEAVING,
        LifeState.CLEANING_UP,
        LifeState.REPORTING,
        LifeState.REMOVING,
        LifeState.REMOVED,
    }
    assert all(target in unwanted for (state, _), (target, _) in TRANSITIONS.items() if state in unwanted)


def test_an_event_that_cannot_happen_is_a_bug():
    for state in LifeState:
        for event in LifeEvent:
            if (state, event) not in TRANSITIONS and (state, event) not in IGNORED:
                with pytest.raises(Bug, match=f"{event.name} while {state.name}"):
                    PodLife(state, END).handle(event)


@given(st.lists(st.sampled_from(LifeEvent)))
def test_resources_of_a_pod_are_released_exactly_when_it_stops_using_them(events):
    life = PodLife()
    for event in events:
        if (life.state, event) not in TRANSITIONS and (life.state, event) not in IGNORED:
            continue
        before = life.state
        actions = life.handle(event, END)
        released = Action.RELEASE in actions
        assert released == (before in HOLDING and life.state in OVER and event is not LifeEvent.REJECT)
        assert (Action.LEAVE in actions) == (before is not life.state and life.state in STOPPING)
        if before in RUNS and life.state not in RUNS | OVER:
            assert Action.INTERRUPT in actions


@given(
    st.lists(st.none() | st.integers(0, 100), min_size=1),
    st.sampled_from([LifeState.WORKING, LifeState.FAILING]),
)
def test_a_second_termination_can_only_shorten_the_grace_period(graces, state):
    life = PodLife(state, END if state is LifeState.FAILING else None)
    for grace in graces:
        before, stopping = life.grace, life.state in (LifeState.FAILING, LifeState.LEAVING)
        actions = life.handle(LifeEvent.REMOVE, grace=grace)
        shorter = grace is not None and (before is None or grace < before)
        assert life.state is LifeState.LEAVING
        assert life.grace == (grace if shorter else before)
        assert (Action.SHORTEN_GRACE in actions) == (shorter and stopping)
    assert life.grace == min((grace for grace in graces if grace is not None), default=None)


def test_the_node_and_the_sources_may_each_give_a_grace_and_the_shorter_one_holds():
    life = PodLife(LifeState.WORKING)
    assert life.given_grace is None
    life.handle(LifeEvent.FAIL, PodEnd("Evicted", "no room", grace_period_seconds=3))
    assert life.given_grace == 3
    life.handle(LifeEvent.REMOVE, grace=9)
    assert life.given_grace == 3
    life.handle(LifeEvent.REMOVE, grace=1)
    assert life.given_grace == 1


def test_only_a_terminating_pod_has_a_grace_period_from_its_source():
    life = PodLife(LifeState.WORKING)
    life.grace = 5
    with pytest.raises(Bug, match="asked to terminate"):
        life.validate()


def test_a_pod_is_removed_only_once_its_last_status_is_known():
    life = PodLife(LifeState.WORKING)
    way = [LifeEvent.REMOVE, LifeEvent.STOPPED, LifeEvent.FREED, LifeEvent.KNOWN, LifeEvent.REMOVED]
    states = []
    for event in way:
        life.handle(event)
        states.append(life.state)
    assert states == [
        LifeState.LEAVING,
        LifeState.CLEANING_UP,
        LifeState.REPORTING,
        LifeState.REMOVING,
        LifeState.REMOVED,
    ]
    assert {state for (state, event) in TRANSITIONS if event is LifeEvent.KNOWN} == {LifeState.REPORTING}
    assert [s for (s, _), (target, _) in TRANSITIONS.items() if target is LifeState.REMOVING] == [
        LifeState.REPORTING
    ]
