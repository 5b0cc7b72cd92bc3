"""Selections and sums of the pods of many nodes equal those of each node alone."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.eviction.pods_in_order import PodsInOrder

NODES = st.lists(st.lists(st.integers(0, 1000), max_size=5), max_size=6)


def together(nodes: list[list[int]]) -> PodsInOrder:
    pods = np.array([pod for node in nodes for pod in node], np.int64)
    return PodsInOrder(pods, np.array([len(node) for node in nodes], np.int64))


def apart(pods: PodsInOrder) -> list[list[int]]:
    ends = pods.counts.cumsum().tolist()
    return [pods.pods[end - count : end].tolist() for end, count in zip(ends, pods.counts, strict=True)]


@given(NODES, st.data())
@settings(deadline=None)
def test_a_choice_of_nodes_and_of_pods_is_each_nodes_own(nodes, data):
    chosen = [number for number in range(len(nodes)) if data.draw(st.booleans())]
    most = data.draw(st.lists(st.integers(0, 6), min_size=len(nodes), max_size=len(nodes)))
    listed = together(nodes)
    assert apart(listed.of(np.array(chosen, np.int64))) == [nodes[number] for number in chosen]
    assert apart(listed.first(np.array(most, np.int64))) == [
        node[:count] for node, count in zip(nodes, most, strict=True)
    ]
    assert apart(listed.where(listed.pods % 2 == 0)) == [[p for p in node if p % 2 == 0] for node in nodes]
    full = np.array([bool(node) for node in nodes], bool)
    assert apart(listed.among(full)) == [node for node in nodes if node]


@given(NODES)
@settings(deadline=None)
def test_sums_and_the_first_marked_pod_are_each_nodes_own(nodes):
    nodes = [node for node in nodes if node] or [[7]]
    listed = together(nodes)
    sums = listed.running(listed.pods)
    assert sums.tolist() == [total for node in nodes for total in accumulate(node)]
    expected = [
        next((place for place, pod in enumerate(node, 1) if pod % 3 == 0), len(node)) for node in nodes
    ]
    assert listed.until(listed.pods % 3 == 0).tolist() == expected
