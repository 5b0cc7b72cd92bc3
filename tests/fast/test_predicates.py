"""The predicate kernels give the twin's answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.preemption import _ledger_c, _ledger_py
from engine._fast.preemption import _predicates_c as kernel
from engine._fast.preemption import _predicates_py as twin

amounts = st.one_of(st.just(0), st.integers(0, 50), st.integers(2**62 - 3, 2**63 - 1))


def arrays(draw, shape: tuple[int, ...], elements=amounts) -> np.ndarray:
    size = int(np.prod(shape))
    return np.array(draw(st.lists(elements, min_size=size, max_size=size)), np.int64).reshape(shape)


@given(st.data(), st.integers(1, 6), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=120, deadline=None)
def test_shortages(data, resources, nodes, pods):
    draw = data.draw
    limits = st.one_of(st.just(-1), amounts)
    droppable = arrays(draw, (resources,), st.integers(0, 1)).astype(np.uint8)
    used, allocatable = arrays(draw, (resources, nodes)), arrays(draw, (resources, nodes), limits)
    counts, pod_limit = arrays(draw, (nodes,), st.integers(0, 9)), arrays(draw, (nodes,), st.integers(0, 9))
    wanted, overhead = arrays(draw, (pods, resources)), arrays(draw, (pods, resources))
    for pod in range(pods):
        arguments = (wanted[pod], overhead[pod], droppable, used, counts, allocatable, pod_limit)
        expected = twin.short_on_each_node(*arguments).tolist()
        assert kernel.short_on_each_node(*arguments, threads=2).tolist() == expected


@given(st.data(), st.integers(1, 4), st.lists(st.integers(0, 4), max_size=6))
@settings(max_examples=100, deadline=None)
def test_sums(data, resources, sizes):
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    requests = arrays(data.draw, (resources, int(offsets[-1])))
    try:
        expected = twin.request_sums(requests, offsets)
    except OverflowError:
        with pytest.raises(OverflowError, match="64 bits"):
            kernel.request_sums(requests, offsets, 2)
        return
    assert kernel.request_sums(requests, offsets, 2).tolist() == expected.tolist()


@given(st.data(), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_a_ledger(data, resources, rows):
    requests, limits = arrays(data.draw, (resources, rows)), arrays(data.draw, (resources,))
    sums = [np.zeros(resources, np.int64) for _ in range(2)]
    ledgers = [
        form.Ledger(requests, used, limits) for form, used in zip((_ledger_c, _ledger_py), sums, strict=True)
    ]
    counted = []
    for row in data.draw(st.lists(st.integers(0, rows - 1), max_size=8)):
        fits, expected = [ledger.fits(row) for ledger in ledgers]
        assert fits == expected
        if row in counted and data.draw(st.booleans()):
            counted.remove(row)
            for ledger in ledgers:
                ledger.remove(row)
        else:
            added, expected = [ledger.add(row) for ledger in ledgers]
            assert added == expected
            counted += [row] * added
        assert sums[0].tolist() == sums[1].tolist()
        assert sums[0].tolist() == [sum(requests[i, counted].tolist()) for i in range(resources)]


@pytest.mark.parametrize("form", [_ledger_c, _ledger_py], ids=["kernel", "twin"])
@pytest.mark.parametrize("row", [-1, 2])
def test_a_ledger_knows_its_rows(form, row):
    ledger = form.Ledger(np.zeros((1, 2), np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    for act in (ledger.fits, ledger.add, ledger.remove):
        with pytest.raises(IndexError, match="of 2"):
            act(row)
    with pytest.raises(ValueError, match="as many resources"):
        form.Ledger(np.zeros((1, 2), np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="offsets"):
        kernel.request_sums(np.zeros((1, 2), np.int64), np.array([0, 3]))
    two, one = np.zeros(2, np.int64), np.zeros((2, 1), np.int64)
    with pytest.raises(ValueError, match="2 resources and 2 nodes"):
        kernel.short_on_each_node(two, two, np.zeros(2, np.uint8), one, two, one, two)
