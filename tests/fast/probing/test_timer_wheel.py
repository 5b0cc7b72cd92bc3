"""The timer wheel against a heap, over short and very long times."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.probing import _wheel_c as compiled
from tests.fast.probing import wheel_twin as twin

spans = (
    st.integers(0, 5)
    | st.integers(0, 3000)
    | st.integers(0, 1 << 20)
    | st.sampled_from(
        [1023, 1024, 1025, 65535, 65536, 65537, 1 << 22, (1 << 22) - 1, 1 << 28, (1 << 28) + 77]
    )
)
steps = st.lists(
    st.tuples(st.just("arm"), st.integers(0, 15), spans)
    | st.tuples(st.just("cancel"), st.integers(0, 15), st.just(0))
    | st.tuples(st.just("advance"), st.just(0), spans),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([0, 1, 1023, 1024, 123_456_789, (1 << 28) - 3]), steps)
def test_compiled_agrees_with_twin(start, steps):
    wheel, heap = compiled.TimerWheel(start), twin.TimerWheel(start)
    for what, timer, span in steps:
        if what == "arm":
            wheel.arm(timer, heap.now + span)
            heap.arm(timer, heap.now + span)
        elif what == "cancel":
            wheel.cancel(timer)
            heap.cancel(timer)
        else:
            now = heap.now + span
            assert wheel.advance(now) == heap.advance(now)
            assert wheel.now == now
        earliest = heap.next()
        if earliest is None:
            assert wheel.next() is None
        else:
            assert heap.now < wheel.next() <= earliest


def test_waking_at_the_given_times_finds_every_timer():
    """An owner that sleeps until `next` is woken at the very tick of each timer."""
    wheel = compiled.TimerWheel(5)
    due = {n: 5 + 7 * n * n * n for n in range(1, 60)}
    for timer, at in due.items():
        wheel.arm(timer, at)
    seen = {}
    wakings = 0
    while (now := wheel.next()) is not None:
        wakings += 1
        seen.update(dict.fromkeys(wheel.advance(now), now))
    assert seen == due
    assert wakings <= len(due) + (max(due.values()) >> 10) + 1
