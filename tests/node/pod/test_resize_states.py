"""A resize as a table: where every event leads, what never happens, and what each state shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import Bug
from engine.api.pod import Pod
from engine.api.status import PodCondition
from engine.node.pod.resize import CONDITIONS, JUDGED, TRANSITIONS, Resize, ResizeEvent, ResizeState


def shown_in(state: ResizeState) -> PodCondition | None:
    shown = CONDITIONS.get(state)
    return None if shown is None else PodCondition(type=shown[0], status="True", reason=shown[1])


def test_every_state_is_reached_and_all_but_the_last_are_left():
    assert set(TRANSITIONS.values()) | {ResizeState.PROPOSED} == set(ResizeState)
    assert {state for state, _ in TRANSITIONS} == set(ResizeState) - {ResizeState.DONE}


@given(st.lists(st.sampled_from(ResizeEvent)))
def test_a_resize_in_progress_is_never_evaluated_again_until_it_completes(events):
    resize = Resize(Pod())
    for event in events:
        before, begun = resize.state, resize.begun
        target = TRANSITIONS.get((before, event))
        if target is None:
            with pytest.raises(Bug, match=f"{event.name} while {before.name}"):
                resize.handle(event)
            continue
        resize.handle(event, shown_in(target))
        assert resize.begun == (begun or event is ResizeEvent.BEGIN)
        assert resize.waiting == (resize.state is ResizeState.DEFERRED)
        assert (resize.state in JUDGED) != resize.begun


def test_a_state_that_shows_something_else_is_a_bug():
    resize = Resize(Pod())
    with pytest.raises(Bug, match="DEFERRED says"):
        resize.handle(ResizeEvent.DEFER, shown_in(ResizeState.RESIZING))
