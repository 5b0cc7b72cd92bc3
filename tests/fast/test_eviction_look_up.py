"""Rows and amounts of pods: the kernel finds the same as the twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._fast.ranking import _eviction_ranking_c, _eviction_ranking_py
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.eviction.usage import PodUsage

uids = st.sampled_from(["a", "b", "c", "d", "e"])
amounts = st.none() | st.integers(0, 2**63 - 1)


@given(
    st.lists(uids, max_size=6),
    st.dictionaries(uids, st.builds(PodUsage, memory=amounts, processes=amounts)),
    st.dictionaries(uids, st.integers(0, 2**31 - 1)),
    st.sampled_from(["memory", "processes"]),
)
def test_kernel_and_twin_agree(listed, usage, row_of, name):
    pods = [Pod(metadata=ObjectMeta(name=uid, uid=uid)) for uid in listed]
    found = [form.look_up(pods, usage, row_of, name) for form in (_eviction_ranking_c, _eviction_ranking_py)]
    for kernel, twin in zip(*found, strict=True):
        assert kernel.typecode == twin.typecode
        assert kernel == twin


def test_an_object_that_is_no_pod_is_refused():
    with pytest.raises(TypeError, match="no slot metadata"):
        _eviction_ranking_c.look_up([object()], {}, {}, "memory")
