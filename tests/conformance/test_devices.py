"""Device hints, topology merges and the device checkpoint against the kubelet's recorded answers."""

from __future__ import annotations

from typing import Any

import pytest

from engine._fast.devices import _bitset_py, _device_list_py, _topology_py, bitset, device_list
from engine._fast.devices import topology as kernels
from engine.devices import inventory as inventory_module
from engine.devices.checkpoint import DeviceCheckpointError, decode, encode, hashed_text
from engine.devices.inventory import Inventory
from engine.devices.state import resource_hints
from engine.topologymanager import policy as topology
from engine.topologymanager import search as topology_search
from engine.topologymanager.policy import Hint, Hints, Numa, TopologyPolicy
from engine.topologymanager.search import DeviceCounts
from engine.wire.deviceplugin_v1beta1_pb2 import ListAndWatchResponse, NUMANode
from tests.conformance.changed import hints_of_device_nodes

KERNELS = pytest.mark.parametrize(
    "implementation",
    [pytest.param(kernels, id="compiled"), pytest.param(_topology_py, id="twin")],
)


def numa_of(case: dict[str, Any]) -> Numa:
    nodes = tuple(sorted(case["numa_nodes"]))
    rows = case.get("distances")
    if rows is None:
        return Numa(nodes)
    return Numa(nodes, tuple(tuple(rows[str(node)]) for node in nodes))


def hints_of(numa: Numa, listed: list[dict[str, Any]] | None) -> list[Hint] | None:
    if listed is None:
        return None
    return [Hint(None if h["mask"] is None else numa.mask(h["mask"]), h["preferred"]) for h in listed]


@KERNELS
def test_topology_merge(vectors, implementation, monkeypatch):
    monkeypatch.setattr(topology, "kernels", implementation)
    for case in vectors("topology_merge"):
        numa = numa_of(case)
        policy = TopologyPolicy(case["policy"], "container", numa, case["prefer_closest"])
        providers = [
            provider and {name: hints_of(numa, hints) for name, hints in provider.items()}
            for provider in case["providers"]
        ]
        decision = policy.decide(providers)
        mask = decision.hint.mask
        got = {
            "mask": None if mask is None else list(numa.ids(mask)),
            "preferred": decision.hint.preferred,
            "admit": decision.admit,
        }
        assert got == case["result"], case


def test_device_checkpoint(vectors):
    for case in vectors("device_checkpoint"):
        text = case["checkpoint"].encode()
        if case["verify"] != "ok":
            with pytest.raises(DeviceCheckpointError):
                decode(text)
            continue
        data = decode(text)
        assert hashed_text(data) == case["hashed_text"], case
        entries = [
            {
                "pod_uid": entry.pod_uid,
                "container": entry.container_name,
                "resource": entry.resource_name,
                "devices": {str(node): ids for node, ids in (entry.device_ids or {}).items()},
                "device_set": sorted(entry.devices),
            }
            for entry in data.pod_device_entries or []
        ]
        assert entries == case["parsed"]["entries"], case
        assert (data.registered_devices or {}) == case["parsed"]["registered"], case
        if case["label"] == "as-written":
            assert encode(data) == text, case


def inventory_of(case: dict[str, Any]) -> Inventory:
    message = ListAndWatchResponse()
    for device in case["devices"]:
        listed = message.devices.add(ID=device["id"], health=device["health"])
        if device["numa"] is not None:
            listed.topology.SetInParent()
            listed.topology.nodes.extend([NUMANode(ID=node) for node in device["numa"]])
    inventory = Inventory()
    inventory.update(message.SerializeToString())
    inventory.claim(case["allocated"])
    return inventory


def listed_hints(numa: Numa, hints: Hints) -> list[dict[str, Any]] | None:
    if hints is None:
        return None
    if isinstance(hints, DeviceCounts):
        flags = hints.flags(len(numa.nodes)).tolist()
        return [
            {"mask": list(numa.ids(mask)), "preferred": flag == kernels.PREFERRED}
            for mask, flag in enumerate(flags)
            if flag
        ]
    return [{"mask": list(numa.ids(h.mask)), "preferred": h.preferred} for h in hints]


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "twin"])
def test_device_hints(vectors, pure, monkeypatch):
    if pure:
        monkeypatch.setattr(device_list, "DeviceIndex", _device_list_py.DeviceIndex)
        monkeypatch.setattr(inventory_module, "bitset", _bitset_py)
        monkeypatch.setattr(topology_search, "kernels", _topology_py)
    for case in vectors("device_hints"):
        numa, result = numa_of(case), case["result"]
        inventory = inventory_of(case)
        free = bitset.difference(inventory.healthy, inventory.allocated)
        assert inventory.aligned == result["aligned"], case
        assert inventory.names(free) == sorted(result["available"]), case
        raw = inventory.counts(numa, free, inventory.bits(case["reusable"]), case["request"])
        assert listed_hints(numa, raw) == hints_of_device_nodes(case, result["generated_hints"]), case
        for key, reusable in (("container_hints", case["reusable"]), ("pod_hints", [])):
            hints = resource_hints(
                inventory,
                numa,
                case["request"],
                held=case["already_allocated_to_container"],
                reusable=reusable,
            )
            assert listed_hints(numa, hints) == hints_of_device_nodes(case, result[key]), (key, case)
        split = result["filter_by_affinity"]
        if split["hint"] is None or not inventory.aligned:
            continue
        parts = inventory.near(split["hint"], free)
        assert [inventory.names(part) for part in parts] == [
            sorted(split[key]) for key in ("affinity", "unaligned", "no_affinity")
        ], case
