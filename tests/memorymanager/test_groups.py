"""Containers whose hint is one node of a group of nodes that is in use."""

from __future__ import annotations

import pytest

from engine.api.documents import convert
from engine.api.pod import Pod
from engine.memorymanager.state import MemoryState, NodeMemory, unused
from engine.memorymanager.static_policy import StaticMemoryPolicy
from engine.topologymanager.policy import Hint, Numa
from engine.topologymanager.provider import AllocationError

GIB = 1 << 30


def pod_of(uid: str, *amounts: dict[str, str]) -> Pod:
    """Build a Guaranteed pod of one container for each of the amounts: c0, c1, …"""
    listed = [{"cpu": "1", **one} for one in amounts]
    containers = [
        {"name": f"c{number}", "image": "x", "resources": {"limits": one, "requests": one}}
        for number, one in enumerate(listed)
    ]
    meta = {"name": uid, "namespace": "d", "uid": uid}
    return convert({"metadata": meta, "spec": {"containers": containers}}, Pod, "pod")


def test_a_container_joins_the_group_that_its_pod_needs() -> None:
    """In the scope of the pod, its containers have one hint, which counts no huge pages of init containers.

    A kubelet gives the second container memory of node 0 alone, and then counts node 0 as used alone.
    """
    machine = [NodeMemory(0, 8 * GIB, {2048: 0}), NodeMemory(1, 2 * GIB, {2048: 256})]
    policy = StaticMemoryPolicy(Numa((0, 1)), MemoryState(unused(machine, {0: {"memory": GIB}})))
    node_0 = Hint(0b01, preferred=True)
    pod = pod_of("p", {"memory": "6Gi", "hugepages-2Mi": "512Mi"}, {"memory": "512Mi"})
    for container in pod.all_containers:
        policy.allocate(pod, container, node_0)
    found = policy.state.of_pod("p")
    assert {name: {block.nodes for block in blocks} for name, blocks in found.items()} == {
        "c0": {(0, 1)},
        "c1": {(0, 1)},
    }
    assert [node.cells for node in policy.state.nodes.values()] == [(0, 1), (0, 1)]

    other = pod_of("other", {"memory": "256Mi"})
    with pytest.raises(AllocationError, match="failed to find the extended preferred hint"):
        policy.allocate(other, other.spec.containers[0], node_0)
