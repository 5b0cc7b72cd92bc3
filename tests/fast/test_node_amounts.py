"""The compiled sums and scores of nodes are those of the twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._fast.placement import _node_amounts_c, _node_amounts_py

FORMS = pytest.mark.parametrize("form", [_node_amounts_c, _node_amounts_py], ids=["kernel", "twin"])


@given(st.integers(0, 20), st.integers(0, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_sums_of_nodes_are_equal(nodes, kinds, templates, seed):
    draw = np.random.default_rng(seed)
    offsets = np.append(0, np.cumsum(draw.integers(0, 4, nodes)))
    # The last pods are on no node.
    template = draw.integers(0, templates, offsets[-1] + 2, np.int32)
    amounts = draw.integers(0, 2**40, (templates, kinds))
    found, expected = (
        form.sums_on_nodes(template, offsets, amounts) for form in (_node_amounts_c, _node_amounts_py)
    )
    assert found.shape == (kinds, nodes)
    assert found.tolist() == expected.tolist()


@given(st.integers(1, 30), st.sampled_from([3, 100, 2**50]), st.integers(0, 2**32 - 1))
def test_the_scores_of_nodes_are_equal(nodes, most, seed):
    draw = np.random.default_rng(seed)
    total, allocatable = draw.integers(0, most, (3, nodes)), draw.integers(0, most, (2, nodes))
    free, used = total - draw.integers(0, most, (3, nodes)), draw.integers(0, most, (2, nodes))
    request, assumed = draw.integers(0, 2, 3) * draw.integers(0, most, 3), draw.integers(0, most, 2)
    for chosen in (None, draw.integers(0, nodes, 4)):
        found, expected = (
            form.scores_by_amounts(total, free, allocatable, used, request, assumed, chosen).tolist()
            for form in (_node_amounts_c, _node_amounts_py)
        )
        assert found == expected


@FORMS
def test_an_empty_and_balanced_node_scores_highest(form):
    total = np.array([[4000, 4000, 0], [8000, 8000, 0]])
    free = np.array([[4000, 2000, 0], [8000, 8000, 0]])
    request = np.array([1000, 2000])
    scores = form.scores_by_amounts(total, free, total, total - free, request, request, None)
    # Empty: (75 + 75) / 2, balanced as before. Half its CPU taken: (25 + 75) / 2, as far apart as before.
    assert scores.tolist() == [75 + 75, 50 + 75, 0 + 75]


@FORMS
def test_a_pod_without_requests_is_scored_without_balance(form):
    total, nothing = np.array([[4000], [8000]]), np.zeros(2, np.int64)
    assert form.scores_by_amounts(total, total // 2, total, total // 2, nothing, nothing, None) == [50]


def test_templates_and_nodes_that_are_not_there_are_refused():
    amounts, two = np.ones((2, 1), np.int64), np.ones(2, np.int64)
    with pytest.raises(ValueError, match="templates with amounts"):
        _node_amounts_c.sums_on_nodes(np.array([2], np.int32), np.array([0, 1]), amounts)
    with pytest.raises(ValueError, match="ascending offsets"):
        _node_amounts_c.sums_on_nodes(np.zeros(2, np.int32), np.array([0, 2, 1]), amounts)
    with pytest.raises(ValueError, match="a template for each pod"):
        _node_amounts_c.sums_on_nodes(np.zeros(1, np.int32), np.array([0, 2]), amounts)
    with pytest.raises(ValueError, match="numbers of nodes"):
        _node_amounts_c.scores_by_amounts(amounts, amounts, amounts, amounts, two, two, np.array([1]))
    with pytest.raises(ValueError, match="amounts of CPU and memory"):
        _node_amounts_c.scores_by_amounts(amounts, amounts[:1], amounts, amounts, two, two, None)
    with pytest.raises(ValueError, match="milli-CPU and bytes"):
        _node_amounts_c.scores_by_amounts(amounts, amounts, amounts, amounts, two[:1], two, None)
