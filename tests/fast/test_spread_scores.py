"""The compiled choice of nodes by score is that of the twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._fast.placement import _spread_scores_c, _spread_scores_py

FORMS = pytest.mark.parametrize("form", [_spread_scores_c, _spread_scores_py], ids=["kernel", "twin"])


@given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_same_nodes_and_cells_are_found(nodes, cells, scores, seed):
    draw = np.random.default_rng(seed)
    chosen = draw.integers(0, 2, nodes, np.uint8)
    cell = draw.integers(0, cells, nodes, np.int32)
    total = draw.integers(-scores, scores, nodes, np.int16)
    score = draw.integers(0, scores, cells, np.int16)
    best, alone, some, fewer = (
        [one.tolist() for one in found]
        for found in zip(
            *(
                (
                    form.best_nodes(total, chosen, cell, score),
                    form.best_nodes(total, chosen, None, None),
                    form.seen_cells(cell, chosen, cells),
                    form.seen_cells(cell, chosen, cells - 1),
                )
                for form in (_spread_scores_c, _spread_scores_py)
            ),
            strict=True,
        )
    )
    assert best[0] == best[1]
    assert alone[0] == alone[1]
    assert some[0] == some[1]
    assert fewer[0] == fewer[1]


@FORMS
def test_equal_nodes_are_all_found(form):
    cell, score = np.array([0, 0, 1, 1, 2], np.int32), np.array([2, 0, 9], np.int16)
    chosen = np.array([1, 1, 1, 0, 0], np.uint8)
    assert form.best_nodes(np.array([1, 1, 3, 3, 3], np.int16), chosen, cell, score).tolist() == [0, 1, 2]
    assert form.seen_cells(cell, chosen, 3).tolist() == [True, True, False]


@FORMS
def test_a_node_outside_of_all_cells_counts_for_none(form):
    cell, chosen = np.array([-1, 2, 0], np.int32), np.ones(3, np.uint8)
    assert form.seen_cells(cell, chosen, 2).tolist() == [True, False]


@FORMS
def test_no_node_is_best_of_none(form):
    none = np.zeros(2, np.uint8)
    total = np.zeros(2, np.int16)
    assert not len(form.best_nodes(total, none, none.astype(np.int32), np.zeros(1, np.int16)))
    assert not len(form.best_nodes(total, none, None, None))
    assert not len(form.best_nodes(total[:0], none[:0], None, None))


def test_arrays_of_unequal_length_are_refused():
    one, two = np.ones(1, np.uint8), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="a total and a cell for each node"):
        _spread_scores_c.best_nodes(np.zeros(2, np.int16), one, two, np.zeros(1, np.int16))
    with pytest.raises(ValueError, match="a cell for each node"):
        _spread_scores_c.seen_cells(two, one, 1)


@pytest.mark.parametrize("cell", [-1, 1])
def test_cells_without_a_score_are_refused(cell):
    total, nodes = np.zeros(1, np.int16), np.ones(1, np.uint8)
    with pytest.raises(ValueError, match="a score for each cell"):
        _spread_scores_c.best_nodes(total, nodes, np.array([cell], np.int32), np.zeros(1, np.int16))
    with pytest.raises(ValueError, match="a score for each cell"):
        _spread_scores_c.best_nodes(total, nodes, np.zeros(1, np.int32), np.zeros(0, np.int16))
