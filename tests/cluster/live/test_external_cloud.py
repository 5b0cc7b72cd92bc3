"""`--cloud-provider=external`: the Node is tainted until a cloud's controller has initialized it, and its
addresses are the controller's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.runtime.hollow import HollowRuntime
from tests.cluster.control_plane import Object, Plane, shown

NODE = "/api/v1/nodes/n1"
PROVIDED = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED = {
    "key": "node.cloudprovider.kubernetes.io/uninitialized",
    "value": "true",
    "effect": "NoSchedule",
}
OF_THE_CLOUD = [
    {"type": "InternalIP", "address": "10.9.8.7"},
    {"type": "ExternalIP", "address": "203.0.113.5"},
    {"type": "Hostname", "address": "n1.cloud"},
]
Start = Callable[..., Awaitable[Node]]


@pytest.fixture
async def start(plane: Plane, tmp_path: Path, runtime: HollowRuntime) -> AsyncIterator[Start]:
    nodes: list[Node] = []

    async def started(*node_ips: str, external: bool = True) -> Node:
        config = KubeletConfiguration(
            cgroups_per_qos=False,
            enforce_node_allocatable=[],
            eviction_hard={"memory.available": "0%"},
            image_gc_high_threshold_percent=100,
            pod_logs_dir=str(tmp_path / "logs"),
            node_status_update_frequency=Duration(0.2),
            node_status_report_frequency=Duration(1),
        )
        node = Node(
            config=config,
            runtime_endpoint=str(runtime.socket),
            root=tmp_path / "root",
            name="n1",
            options=NodeOptions(kubeconfig=plane.node, node_ips=node_ips, external_cloud=external),
        )
        nodes.append(node)
        await node.start()
        return node

    yield started
    for node in nodes:
        await node.stop()
    await plane.admin.delete(NODE, {})


def addresses(node: Object) -> list[Object]:
    found: list[Object] = node.get("status", {}).get("addresses", [])
    return found


async def test_a_node_is_tainted_and_its_addresses_are_the_clouds(plane: Plane, start: Start):
    node = await start()
    known = await shown(plane.admin, NODE, lambda node: bool(node.get("status", {}).get("conditions")))
    assert UNINITIALIZED in known["spec"]["taints"]
    assert addresses(known) == [{"type": "Hostname", "address": "n1"}]
    assert PROVIDED not in known["metadata"].get("annotations", {})
    await plane.admin.patch(f"{NODE}/status", {"status": {"addresses": OF_THE_CLOUD}}, Object)
    await plane.admin.patch(NODE, {"spec": {"taints": None}}, Object)
    before = known["status"]["conditions"][0]["lastHeartbeatTime"]
    later = await shown(
        plane.admin, NODE, lambda node: node["status"]["conditions"][0]["lastHeartbeatTime"] > before
    )
    assert sorted(each["address"] for each in addresses(later)) == ["10.9.8.7", "203.0.113.5", "n1.cloud"]
    assert not later["spec"].get("taints")
    assert node.running.pods is not None
    shown_here = [each.address for each in node.node_object().status.addresses or ()]
    assert sorted(shown_here) == ["10.9.8.7", "203.0.113.5", "n1.cloud"]
    await node.stop()
    await start()
    again = await shown(
        plane.admin,
        NODE,
        lambda node: (
            node["status"]["conditions"][0]["lastHeartbeatTime"]
            > later["status"]["conditions"][0]["lastHeartbeatTime"]
        ),
    )
    assert len(addresses(again)) == 3, "a restart leaves them to the cloud"
    assert not again["spec"].get("taints"), "an initialized Node is not tainted again"


async def test_a_given_address_is_annotated_for_the_cloud(plane: Plane, start: Start):
    node = await start("127.0.0.1")
    known = await shown(plane.admin, NODE, lambda node: bool(node.get("status", {}).get("conditions")))
    assert known["metadata"]["annotations"][PROVIDED] == "127.0.0.1"
    assert addresses(known)[0] == {"type": "InternalIP", "address": "127.0.0.1"}
    await node.stop()
    await start("127.0.0.1", external=False)
    await shown(plane.admin, NODE, lambda node: PROVIDED not in node["metadata"].get("annotations", {}))
