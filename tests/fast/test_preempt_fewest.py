"""The compiled search for few victims takes the twin's steps and gives its answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.preemption import _preempt_fewest_c as kernel
from engine._fast.preemption import _preempt_fewest_py as twin


@given(
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.sampled_from([3, 40, 2**40, 2**57]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 200),
)
@settings(max_examples=400, deadline=None)
def test_kernel_is_the_twin(n, k, size, seed, largest, with_goals, with_start, steps):
    rng = np.random.default_rng(seed)
    amounts = rng.integers(0, largest, (n, k))
    priorities = rng.integers(-3, 3, n)
    needs = rng.integers(1, max(2, largest * size // 2), k)
    goals = needs + rng.integers(0, largest, k) if with_goals else np.empty(0, np.int64)
    start = np.empty(0, np.int32)
    if with_start and size <= n and (np.sort(amounts, axis=0)[-size:].sum(axis=0) > 0).all():
        start = np.sort(rng.permutation(n)[:size]).astype(np.int32)
        needs = np.maximum(1, np.minimum(needs, amounts[start].sum(axis=0)))
    for limit in (steps, 10**9):
        arguments = (amounts, priorities, needs, goals, size, start, 60.0, limit)
        expected, finished, visits = twin.best_of_size(*arguments)
        got, got_finished, got_visits = kernel.best_of_size(*arguments)
        assert got.tolist() == expected.tolist()
        assert (got_finished, got_visits) == (finished, visits)


def test_shapes_are_checked():
    none, one = np.empty(0, np.int64), np.ones(1, np.int64)
    with pytest.raises(ValueError, match="priority for each"):
        kernel.best_of_size(np.ones((2, 1), np.int64), one, one, none, 1, np.empty(0, np.int32), 1.0, 9)
    with pytest.raises(ValueError, match="is not there"):
        kernel.best_of_size(np.ones((1, 1), np.int64), one, one, none, 1, np.array([4], np.int32), 1.0, 9)
