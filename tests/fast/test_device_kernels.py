"""Bitset, NUMA and message kernels against their twins, on whatever hypothesis thinks of."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine._fast._select import PURE
from engine._fast.devices import (
    _bitset_c,
    _bitset_py,
    _device_checksum_c,
    _device_checksum_py,
    _device_list_c,
    _device_list_py,
    _topology_c,
    _topology_py,
    bitset,
    device_list,
    topology,
)
from engine.topologymanager import policy as policies
from engine.topologymanager.policy import Numa, TopologyPolicy
from engine.topologymanager.search import DeviceCounts, merge_counts
from engine.wire.deviceplugin_v1beta1_pb2 import Device, ListAndWatchResponse, NUMANode, TopologyInfo

words = st.integers(0, 2**64 - 1)


@pytest.mark.skipif(PURE, reason="KUBENGINE_PURE=1 asks for the twins")
def test_the_compiled_kernels_are_in_use():
    assert bitset.difference is _bitset_c.difference
    assert topology.merge is _topology_c.merge
    assert device_list.DeviceIndex is _device_list_c.DeviceIndex


@given(st.lists(st.tuples(words, words), max_size=5), st.integers(-1, 400))
@settings(deadline=None)
def test_bitsets(pairs, n):
    a = np.array([x for x, _ in pairs], np.uint64)
    b = np.array([y for _, y in pairs], np.uint64)
    for name in ("difference", "intersection", "count_intersection", "count_difference"):
        assert np.array_equal(getattr(_bitset_c, name)(a, b), getattr(_bitset_py, name)(a, b)), name
    assert _bitset_c.count(a) == _bitset_py.count(a)
    assert np.array_equal(_bitset_c.first(a, n), _bitset_py.first(a, n))
    assert _bitset_c.first_of_difference(a, b, n) == _bitset_py.first_of_difference(a, b, n)


@pytest.mark.parametrize("kernels", [_bitset_c, _bitset_py], ids=["compiled", "twin"])
@pytest.mark.parametrize("name", ["difference", "intersection", "count_difference", "count_intersection"])
def test_bitsets_of_different_lengths_are_refused(kernels, name):
    with pytest.raises(ValueError, match="bitsets of 1 and 2 words"):
        getattr(kernels, name)(np.zeros(1, np.uint64), np.zeros(2, np.uint64))


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_checksum(data):
    assert _device_checksum_c.fnv1a(data) == _device_checksum_py.fnv1a(data)
    assert _device_checksum_c.fnv1a_128(data) == _device_checksum_py.fnv1a_128(data)


flag_arrays = st.sampled_from([0, 0, 0, 1, 2, 3])


@st.composite
def merges(draw):
    nodes = draw(st.integers(1, 4))
    families = [
        (
            np.array(draw(st.lists(flag_arrays, min_size=1 << nodes, max_size=1 << nodes)), np.uint8),
            draw(st.sampled_from([-1, -1, 0, 1])),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    distances = None
    if draw(st.booleans()):
        row = st.lists(st.integers(10, 13), min_size=nodes, max_size=nodes)
        distances = np.array(draw(st.lists(row, min_size=nodes, max_size=nodes)), np.int64)
    return nodes, families, distances


@given(merges())
@settings(max_examples=300, deadline=None)
def test_merge(case):
    assert _topology_c.merge(*case) == _topology_py.merge(*case)


@st.composite
def sparse_merges(draw):
    """More nodes than one block of sums has, and few hints, so that the twin can take them all."""
    nodes = draw(st.integers(10, 14))
    families = []
    for _ in range(draw(st.integers(1, 3))):
        flags = np.zeros(1 << nodes, np.uint8)
        for mask in draw(st.lists(st.integers(1, (1 << nodes) - 1), min_size=1, max_size=8)):
            flags[mask] = draw(st.integers(1, 3))
        families.append((flags, draw(st.sampled_from([-1, -1, 0, 1]))))
    distances = None
    if draw(st.booleans()):
        row = st.lists(st.integers(10, 12), min_size=nodes, max_size=nodes)
        distances = np.array(draw(st.lists(row, min_size=nodes, max_size=nodes)), np.int64)
    return nodes, families, distances


@given(sparse_merges())
@settings(max_examples=150, deadline=None)
def test_merge_among_many_nodes(case):
    assert _topology_c.merge(*case) == _topology_py.merge(*case)


def test_merge_of_more_hints_than_fit_one_product():
    # Six full families of 16 nodes have more combinations than 2^64 counts.
    nodes = 16
    flags = np.ones(1 << nodes, np.uint8)
    flags[0] = 0
    assert _topology_c.merge(nodes, [(flags, -1)] * 6, None) == (1, False)


@pytest.mark.parametrize("kernels", [_topology_c], ids=["compiled"])
def test_bad_shapes_are_refused(kernels):
    with pytest.raises(ValueError, match="hints of shape"):
        kernels.merge(2, [(np.zeros(3, np.uint8), -1)], None)
    with pytest.raises(ValueError, match="NUMA nodes"):
        kernels.merge(21, [], None)
    with pytest.raises(ValueError, match="distances of shape"):
        kernels.merge(2, [], np.zeros((3, 3), np.int64))


@st.composite
def device_counts(draw, nodes, single=False):
    size = draw(st.integers(0, 4))
    masks = st.integers(0, nodes - 1).map(lambda i: 1 << i) if single else st.integers(0, (1 << nodes) - 1)
    amounts = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    scarce = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=size, max_size=size)
    return DeviceCounts(
        tuple(draw(st.lists(masks, min_size=size, max_size=size))),
        tuple(draw(amounts)),
        tuple(draw(amounts)),
        tuple(draw(scarce)),
        draw(st.integers(1, 6)),
    )


@given(st.integers(1, 4).flatmap(lambda nodes: st.tuples(st.just(nodes), device_counts(nodes))))
@settings(deadline=None)
def test_generate(case):
    nodes, counts = case
    columns = (
        nodes,
        np.array(counts.groups, np.uint64),
        *(np.array(c, np.int64) for c in (counts.everything, counts.available, counts.reusable)),
        counts.request,
    )
    assert np.array_equal(_topology_c.generate(*columns), _topology_py.generate(*columns))


@given(st.integers(10, 13).flatmap(lambda nodes: st.tuples(st.just(nodes), device_counts(nodes))))
@settings(max_examples=10, deadline=None)
def test_generate_among_many_nodes(case):
    nodes, counts = case
    columns = (
        nodes,
        np.array(counts.groups, np.uint64),
        *(np.array(c, np.int64) for c in (counts.everything, counts.available, counts.reusable)),
        counts.request,
    )
    assert np.array_equal(_topology_c.generate(*columns), _topology_py.generate(*columns))


@st.composite
def searches(draw):
    nodes = draw(st.integers(1, 5))
    resource = st.one_of(st.booleans(), device_counts(nodes), device_counts(nodes, single=True))
    resources = draw(st.lists(resource, max_size=3))
    distances = None
    if draw(st.booleans()):
        row = st.lists(st.integers(10, 12), min_size=nodes, max_size=nodes)
        distances = np.array(draw(st.lists(row, min_size=nodes, max_size=nodes)), np.int64)
    return nodes, resources, distances


def listed_family(nodes, resource):
    if isinstance(resource, bool):
        return np.zeros(1 << nodes, np.uint8), topology.ANY_NODE if resource else topology.NOWHERE
    flags = resource.flags(nodes)
    return flags, topology.NO_MASK if flags.any() else topology.NOWHERE


@given(searches())
@settings(max_examples=200, deadline=None)
def test_search_finds_what_listing_every_mask_finds(case):
    nodes, resources, distances = case
    families = [listed_family(nodes, resource) for resource in resources]
    expected = _topology_c.merge(nodes, families, distances)
    assert merge_counts(nodes, resources, distances, single=False) == (*expected, True)


@given(searches(), st.integers(0, 60))
@example((3, [DeviceCounts((6, 2, 0, 5), (1, 0, 0, 0), (0, 0, 0, 0), (0, 1, 0, 1), 1)], None), 0)
@settings(max_examples=300, deadline=None)
def test_an_early_end_of_a_search_is_reported_and_its_answer_is_valid(case, steps):
    nodes, resources, distances = case
    families = [listed_family(nodes, resource) for resource in resources]
    best = _topology_c.merge(nodes, families, distances)
    found = merge_counts(nodes, resources, distances, single=False, steps=steps)
    if found.proven:
        assert found[:2] == best
    elif found.preferred:
        assert best[1]
        assert found.mask.bit_count() == best[0].bit_count()
        assert all(r is True or r.enough(found.mask) for r in resources)
    else:
        assert found.mask in intersections(nodes, families)


def intersections(nodes, families):
    """Return every mask that choosing one hint of each resource leads to."""
    masks = {(1 << nodes) - 1}
    for flags, _ in families:
        hints = set(np.flatnonzero(flags).tolist()) or {(1 << nodes) - 1}
        masks = {mask & hint for mask in masks for hint in hints}
    return masks


def test_a_search_among_many_nodes_that_ends_early_claims_no_preference():
    """Six resources that no few nodes serve together: finding the fewest is out of reach."""
    nodes, rng = 48, random.Random(1)
    trios = [[sum(1 << n for n in rng.sample(range(nodes), 3)) for _ in range(40)] for _ in range(6)]
    resources = [DeviceCounts(tuple(t), (3,) * 40, (1,) * 40, (0,) * 40, 40) for t in trios]
    found = merge_counts(nodes, resources, None, single=False)
    assert not found.proven
    assert not found.preferred
    assert found.mask
    assert not any(found.mask & ~resource.within(nodes) for resource in resources)


@given(searches(), st.sampled_from(["best-effort", "restricted", "single-numa-node"]))
@settings(max_examples=100, deadline=None)
def test_policies_decide_equally_for_any_number_of_nodes(case, name):
    nodes, resources, distances = case
    rows = () if distances is None else tuple(map(tuple, distances.tolist()))
    policy = TopologyPolicy(name, "container", Numa(tuple(range(nodes)), rows), prefer_closest=True)
    provider = {str(i): None if r is True else [] if r is False else r for i, r in enumerate(resources)}
    listed = policy.decide([provider])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "DENSE_NODES", 0)
        assert policy.decide([provider]) == listed


def test_sixty_four_nodes_are_answered():
    nodes = 64
    each = tuple(1 << i for i in range(nodes))
    gpus = DeviceCounts(each, (4,) * nodes, (1,) * 60 + (4,) * 4, (0,) * nodes, 8)
    nics = DeviceCounts(each, (2,) * nodes, (2,) * nodes, (0,) * nodes, 4)
    assert merge_counts(nodes, [gpus, nics], None, single=False) == (0b11 << 60, True, True)
    busy = DeviceCounts(each, (4,) * nodes, (1,) * nodes, (0,) * nodes, 8)
    assert merge_counts(nodes, [busy, nics], None, single=False) == ((1 << 8) - 1, False, True)
    assert merge_counts(nodes, [busy, nics], None, single=True) == ((1 << 64) - 1, False, True)


devices = st.builds(
    Device,
    ID=st.sampled_from(["", "a", "b", "c", "new", "née", "x" * 200]),
    health=st.sampled_from(["Healthy", "Unhealthy", "healthy", "", "é"]),
    topology=st.one_of(
        st.none(),
        st.builds(
            TopologyInfo,
            nodes=st.lists(st.builds(NUMANode, ID=st.sampled_from([0, 1, 7, -1, 2**40])), max_size=3),
        ),
    ),
)
messages = st.builds(ListAndWatchResponse, devices=st.lists(devices, max_size=6)).map(
    lambda message: message.SerializeToString()
)


@st.composite
def damaged(draw):
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            at = draw(st.integers(0, len(data) - 1))
            match draw(st.sampled_from(["set", "insert", "delete", "cut"])):
                case "set":
                    data[at] = draw(st.integers(0, 255))
                case "insert":
                    data.insert(at, draw(st.integers(0, 255)))
                case "delete":
                    del data[at]
                case _:
                    del data[at:]
    return bytes(data)


def reading(index, message):
    try:
        listed = index.read(message)
    except ValueError:
        return "refused"
    nodes = [index.nodes(number) for number in listed.topology.tolist()]
    return listed.state.tolist(), nodes, listed.new_ids, listed.duplicates, listed.nameless, listed.odd


@given(
    st.lists(st.sampled_from(["a", "b", "c", "née"]), unique=True),
    st.lists(damaged(), min_size=1, max_size=3),
)
@example(known=["a"], several=[b"\x0a\x05\x0a\x01a\x0b\x0c"])
@example(known=["a"], several=[b"\x0a\x07\x0a\x01a\x1a\x00\x1a\x00"])
@example(known=["a"], several=[b"\x0a\x06\x0a\x01\xff\x0a\x01a"])
@settings(max_examples=300, deadline=None)
def test_reading_messages(known, several):
    twin, compiled = _device_list_py.DeviceIndex(known), _device_list_c.DeviceIndex(known)
    for message in several:
        assert reading(compiled, message) == reading(twin, message)


@given(st.binary(max_size=64))
@settings(max_examples=500, deadline=None)
def test_reading_noise(noise):
    assert reading(_device_list_c.DeviceIndex(["a"]), noise) == reading(
        _device_list_py.DeviceIndex(["a"]), noise
    )
