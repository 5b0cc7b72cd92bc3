"""The compiled counts and sizes of images are those of the twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._fast.placement import _node_images_c, _node_images_py

BOTH = (_node_images_c, _node_images_py)
FORMS = pytest.mark.parametrize("form", BOTH, ids=["kernel", "twin"])
SEEDS = st.integers(0, 2**32 - 1)


@given(st.integers(0, 60), st.integers(1, 8), st.booleans(), SEEDS)
def test_the_same_images_are_counted(images, nodes, in_order, seed):
    """Count images in order and out of it, after others were counted."""
    draw = np.random.default_rng(seed)
    node = draw.integers(0, nodes, images, np.int32)
    if in_order:
        node.sort()
    found = []
    for form in BOTH:
        counts = np.ones(nodes, np.int64)
        found.append((form.count_images(node, counts), counts.tolist()))
    assert found[0] == found[1]
    assert sum(found[0][1]) == nodes + images


@given(st.integers(0, 30), st.integers(1, 6), st.integers(1, 3), SEEDS)
def test_the_same_sizes_are_known(images, codes, sizes, seed):
    """Read images in two parts; with few sizes, some codes have one size everywhere."""
    draw = np.random.default_rng(seed)
    code, size = draw.integers(0, codes, images, np.int32), draw.integers(0, sizes, images)
    found = []
    for form in BOTH:
        known = np.full(codes, -1, np.int64)
        parts = (slice(0, images // 2), slice(images // 2, images))
        equal = all(form.note_sizes(code[part], size[part], known) for part in parts)
        # Which of several sizes is known does not matter.
        found.append((equal, known.tolist() if equal else None))
    assert found[0] == found[1]
    assert found[0][0] == all(len(set(size[code == one].tolist())) <= 1 for one in range(codes))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 6), st.integers(0, 3), SEEDS)
def test_the_same_rows_are_found(counts, codes, before, seed):
    draw = np.random.default_rng(seed)
    offsets = np.cumsum([before, *counts])
    code = draw.integers(0, codes, offsets[-1] + 2, np.int32)
    wanted = draw.integers(0, 2, codes, np.uint8)
    kernel, twin = (form.rows_on_nodes(code, offsets, wanted).tolist() for form in BOTH)
    assert kernel == twin


@FORMS
def test_the_last_of_several_images_counts(form):
    code, offsets = np.array([0, 1, 0, 1], np.int32), np.array([0, 3, 3, 4])
    assert form.rows_on_nodes(code, offsets, np.array([1, 0], np.uint8)).tolist() == [2, -1, -1]
    assert not len(form.rows_on_nodes(code, offsets[:1], np.ones(2, np.uint8)))


@FORMS
def test_numbers_without_a_place_are_refused(form):
    beyond, below = np.array([1], np.int32), np.array([-1], np.int32)
    one, offsets = np.zeros(1, np.int64), np.array([0, 1])
    for code in (beyond, below):
        with pytest.raises(ValueError, match="nodes with a count"):
            form.count_images(code, one.copy())
        with pytest.raises(ValueError, match="codes with a size"):
            form.note_sizes(code, one, one.copy())
        with pytest.raises(ValueError, match="known codes"):
            form.rows_on_nodes(code, offsets, np.ones(1, np.uint8))
    for wrong in ([0, 2], [-1, 1], [0, 1, 0]):
        with pytest.raises(ValueError, match="ascending offsets"):
            form.rows_on_nodes(np.zeros(1, np.int32), np.array(wrong), np.ones(1, np.uint8))


def test_arrays_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="a size for each code"):
        _node_images_c.note_sizes(np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64))
