"""Boundaries of objects in JSON: the kernel and its twin against a real parser and against each other."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.messages import _json_split_c, _json_split_py
from engine._fast.messages._json_split_py import DONE, FULL, ITEMS, MORE, OBJECT, TOO_DEEP, UNEXPECTED

FORMS = pytest.mark.parametrize("split", [_json_split_c, _json_split_py], ids=["kernel", "twin"])

texts = st.text(alphabet='ab"\\{}[],:é\n items', max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts.filter(lambda t: t != "items"), values, max_size=3)


@FORMS
@settings(max_examples=80, deadline=None)
@given(items=st.lists(objects, max_size=5), head=objects, tail=objects, indent=st.sampled_from([None, 4]))
def test_finds_every_item(split, items, head, tail, indent):
    document = {**head, "items": items, **{f"z{k}": v for k, v in tail.items()}}
    data = json.dumps(document, indent=indent).encode()
    status, begin, at = split.open_document(data, 0, 100)
    assert (status, begin) == (ITEMS, 0)
    bounds = np.zeros((10, 2), np.int64)
    count, at, status = split.split_items(data, at, bounds, 100)
    assert status == DONE
    assert [json.loads(data[a:b]) for a, b in bounds[:count]] == items
    assert split.close_document(data, at, 100) == (DONE, len(data))


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60) | texts.map(str.encode) | values.map(lambda v: json.dumps(v).encode()))
def test_kernel_and_twin_agree_on_anything(data):
    for depth in (1, 3, 100):
        ours, theirs = np.zeros((3, 2), np.int64), np.zeros((3, 2), np.int64)
        for start in (0, len(data) // 2):
            assert _json_split_c.open_document(data, start, depth) == _json_split_py.open_document(
                data, start, depth
            )
            assert _json_split_c.close_document(data, start, depth) == _json_split_py.close_document(
                data, start, depth
            )
            found = _json_split_c.split_items(data, start, ours, depth)
            assert found == _json_split_py.split_items(data, start, theirs, depth)
            assert (ours[: found[0]] == theirs[: found[0]]).all()


@FORMS
def test_the_reason_of_a_stop_is_reported(split):
    bounds = np.zeros((1, 2), np.int64)
    assert split.split_items(b'{"a":1},{"b":2}]', 0, bounds, 9) == (1, 8, FULL)
    assert split.split_items(b'{"a":{"b":[1]}}', 0, bounds, 2) == (0, 0, TOO_DEEP)
    assert split.split_items(b" 17", 0, bounds, 2) == (0, 1, UNEXPECTED)
    assert split.split_items(b'{"a":"x', 0, bounds, 2) == (0, 0, MORE)
    assert split.open_document(b'{"spec":{"items":[1]}}', 0, 9)[0] == OBJECT
    assert split.open_document(b'{"items":3}', 0, 9)[0] == OBJECT
    assert split.open_document(b'{"x":"items"}', 0, 9)[0] == OBJECT
    assert split.open_document(b"nope", 0, 9)[0] == UNEXPECTED
