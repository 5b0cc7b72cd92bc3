"""Moments in the words of the API."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from engine.api.timestamps import rfc3339, rfc3339_micro, whole_second

MOMENTS = st.floats(0, 4e9)


@given(MOMENTS)
def test_a_moment_is_written_as_the_second_in_which_it_lies(seconds: float) -> None:
    assert whole_second(seconds).timestamp() == int(seconds)
    assert datetime.fromisoformat(rfc3339(seconds)) == whole_second(seconds)
    assert len(rfc3339(seconds)) == len("2026-02-03T04:05:06Z")


@given(MOMENTS)
def test_microseconds_are_always_six_digits(seconds: float) -> None:
    text = rfc3339_micro(seconds)
    assert len(text) == len("2026-02-03T04:05:06.000007Z")
    assert abs(datetime.fromisoformat(text).timestamp() - seconds) < 1e-5
