"""A strategic merge patch, applied as the API server applies it, gives the object that was wanted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.merge import MERGE_KEYS, strategic_patch
from engine.testing.apiserver.merging import strategic_merge

names = st.sampled_from(["a", "b", "c", "phase"])
plain = st.booleans() | st.integers(0, 3) | st.text("xy", max_size=2)


def items(key: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    fields = st.dictionaries(names, plain, max_size=3)
    item = st.tuples(st.sampled_from("pqrs"), fields).map(lambda pair: {key: pair[0], **pair[1]})
    return st.lists(item, max_size=4, unique_by=lambda each: each[key])


def objects() -> st.SearchStrategy[dict[str, Any]]:
    values = plain | st.lists(st.integers(0, 2), max_size=3)
    nested = st.recursive(
        st.dictionaries(names, values, max_size=3),
        lambda inner: st.dictionaries(names, values | inner, max_size=3),
        max_leaves=4,
    )
    lists = st.fixed_dictionaries({}, optional={name: items(key) for name, key in MERGE_KEYS.items()})
    return st.tuples(nested, lists).map(lambda both: both[0] | both[1])


@given(objects(), objects())
def test_applied_to_the_old_it_gives_the_new(old: dict[str, Any], new: dict[str, Any]):
    assert strategic_merge(old, strategic_patch(old, new)) == new
