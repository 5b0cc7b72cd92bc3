"""The compiled scores by spread are those of the twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._fast.placement import _spread_scores_c, _spread_scores_py

FORMS = pytest.mark.parametrize("form", [_spread_scores_c, _spread_scores_py], ids=["kernel", "twin"])


@given(st.integers(1, 40), st.integers(0, 3), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_replicas_spread_over_the_same_nodes(nodes, keys, most, seed):
    draw = np.random.default_rng(seed)
    chosen = np.flatnonzero(draw.integers(0, 2, nodes))
    base = draw.choice([0.5, 1.5, 0.5 + 2.3], nodes)
    domain = draw.integers(-1, most, (keys, nodes), np.int32)
    values = np.concatenate([draw.random((keys, most)) * 5, np.zeros((keys, 1))], axis=1)
    size = draw.choice([0.0, 1.0, 10_000.0])  # none, few and many distinct counts
    base, values = base * size + 0.5, values * size
    keyed = (draw.random(nodes) < 0.8).astype(np.uint8)
    totals = []
    for form in (_spread_scores_c, _spread_scores_py):
        total = np.arange(len(chosen))
        form.add_spread(total, chosen, 2, base, domain, values, keyed)
        totals.append(total.tolist())
    assert totals[0] == totals[1]
    for row in domain:
        names, row = np.unique(row, return_inverse=True)
        row = (row - (names[0] == -1)).astype(np.int32)
        counts = [
            form.domains_among(row, chosen, len(names)) for form in (_spread_scores_c, _spread_scores_py)
        ]
        assert counts[0] == counts[1] == len({int(one) for one in row[chosen]})


@FORMS
def test_the_domain_with_fewest_replicas_gets_100(form):
    zones, counts = np.array([[0, 0, 1, -1]], np.int32), np.array([[4.0, 2.0, 0.0]])
    total = np.zeros(4, np.int64)
    nodes, keyed = np.arange(4), np.array([1, 1, 1, 0], np.uint8)
    form.add_spread(total, nodes, 1, np.zeros(4), zones, counts, keyed)
    assert total.tolist() == [50, 50, 100, 0]


def test_arrays_of_unequal_length_are_refused():
    none, yes = np.zeros((0, 2)), np.ones(2, np.uint8)
    with pytest.raises(ValueError, match="one total per node"):
        _spread_scores_c.add_spread(
            np.zeros(1, np.int64), np.arange(2), 1, np.zeros(2), none.astype(np.int32), none, yes
        )


def test_numbers_beyond_the_last_domain_are_refused():
    with pytest.raises(ValueError, match="without gaps"):
        _spread_scores_c.domains_among(np.array([5], np.int32), np.arange(1), 1)
