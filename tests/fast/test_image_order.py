"""Order and cut: the kernel against its twin, and both against the documented rule."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.ranking import _image_order_c, _image_order_py
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.tables import ImageTable

FORMS = pytest.mark.parametrize("form", [_image_order_c, _image_order_py], ids=["kernel", "twin"])


def test_the_compiled_form_is_compiled():
    assert _image_order_c.__file__.endswith(".so")
    assert "engine._fast.ranking._image_order_c" in sys.modules


@st.composite
def columns(draw):
    count = draw(st.integers(0, 200))
    few = draw(st.booleans())
    times = st.sampled_from([0.0, 1.0, 2.0]) if few else st.floats(-1e12, 1e12)
    sizes = st.sampled_from([0, 1, 7, 2**62]) if draw(st.booleans()) else st.integers(0, 2**40)

    def column(elements, dtype):
        return np.array(draw(st.lists(elements, min_size=count, max_size=count)), dtype)

    return (
        column(times, np.float64),
        column(times, np.float64),
        column(sizes, np.int64),
        column(st.booleans(), np.bool_),
    )


@settings(max_examples=200, deadline=None)
@given(columns(), st.integers(-(2**63), 2**64))
def test_kernel_and_twin_agree(given_columns, target):
    rows, freed = _image_order_c.order_and_cut(*(*given_columns, target))
    twin_rows, twin_freed = _image_order_py.order_and_cut(*(*given_columns, target))
    assert (rows, freed) == (twin_rows, twin_freed)


@settings(max_examples=100, deadline=None)
@given(columns(), st.data(), st.floats(-1e12, 1e12), st.floats(0, 1e6))
def test_kernel_and_twin_flag_the_same_rows(given_columns, data, now, age):
    last_used, detected, _, live = given_columns
    octets = st.binary(min_size=len(live), max_size=len(live))
    in_use, pinned = (bytearray(octet & 1 for octet in data.draw(octets)) for _ in range(2))
    spare = (live, in_use, pinned, last_used, detected, now, age)
    assert _image_order_c.spare(*spare) == _image_order_py.spare(*spare)
    disused = (live, in_use, pinned, last_used, now, age)
    assert _image_order_c.disused(*disused) == _image_order_py.disused(*disused)


@FORMS
@pytest.mark.parametrize("shape", ["ascending", "descending", "equal", "organ-pipe"])
def test_no_shape_of_input_defeats_the_order(form, shape):
    count = 3000
    ramp = np.arange(count, dtype=np.float64)
    primary = {
        "ascending": ramp, "descending": ramp[::-1].copy(), "equal": np.zeros(count),
        "organ-pipe": np.minimum(ramp, ramp[::-1]),
    }[shape]  # fmt: skip
    ones, everything = np.ones(count, np.int64), np.ones(count, np.bool_)
    rows, freed = form.order_and_cut(primary, np.zeros(count), ones, everything, 1000)
    assert freed == len(rows) == 1000
    assert rows == np.lexsort((np.arange(count), primary))[:1000].tolist()


@FORMS
def test_a_target_of_zero_takes_one(form):
    one = np.ones(3, np.int64)
    rows, freed = form.order_and_cut(np.array([3.0, 1.0, 2.0]), np.zeros(3), one, np.ones(3, np.bool_), -5)
    assert (rows, freed) == ([1], 1)
    rows, freed = form.order_and_cut(np.zeros(3), np.zeros(3), one, np.zeros(3, np.bool_), 5)
    assert (rows, freed) == ([], 0)


@FORMS
def test_match_and_mark(form):
    kept, replaced = object(), object()
    index, known = {"a": 0, "b": 1}, [kept, object()]
    marks = np.zeros(2, np.bool_)
    assert form.match(index, ["a", "new", "b"], [kept, object(), replaced], known, marks) == [1, 2]
    assert marks.tolist() == [True, True]
    marks = np.zeros(2, np.bool_)
    assert form.mark(index, ["b", "stranger", "b"], marks) == ["stranger"]
    assert marks.tolist() == [False, True]


def test_the_kernel_refuses_a_row_outside_the_marks():
    with pytest.raises(IndexError, match="row 5 of 2"):
        _image_order_c.mark({"a": 5}, ["a"], np.zeros(2, np.bool_))
    with pytest.raises(ValueError, match="as long as eligible"):
        _image_order_c.order_and_cut(np.zeros(1), np.zeros(2), np.zeros(2, np.int64), np.ones(2, np.bool_), 1)
    with pytest.raises(ValueError, match="as long as live"):
        _image_order_c.spare(bytearray(2), bytearray(2), bytearray(1), np.zeros(2), np.zeros(2), 0, 0)
    with pytest.raises(ValueError, match="as long as live"):
        _image_order_c.disused(bytearray(2), bytearray(2), bytearray(2), np.zeros(1), 0, 0)


def test_orders_equal_the_kubelets():
    now, day = 1e9, 86400.0
    table = ImageTable()
    table.add("recent-huge", size=1000, detected=now - 30 * day)
    table.add("old-small", size=10, detected=now - 30 * day)
    table.add("middle", size=400, detected=now - 30 * day)
    for key, days in (("recent-huge", 0.1), ("old-small", 20), ("middle", 5)):
        table.columns.last_used[table.row(key)] = now - days * day

    def order(name):
        policy = ImageGCPolicy(order=name)
        eligible = selection.spare(table.columns, policy, now)
        return [table.key(row) for row in selection.order(table.columns, eligible, policy, now)]

    assert order("lru") == ["old-small", "middle", "recent-huge"]
    assert order("largest-first") == ["recent-huge", "middle", "old-small"]
    assert order("size-aware") == ["middle", "old-small", "recent-huge"]
