"""Eviction by a whole node: manifests, a real containerd, real memory; the node is a private cgroup."""

from __future__ import annotations

import asyncio

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.kubengine_config import EvictionSection, KubengineConfiguration
from engine.eviction.readings import NodeView
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.testing.images import BUSYBOX_TAG
from tests.eviction.private_node import MIB
from tests.node_rig import Rig
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root]
API = {"kubernetes.io/config.source": "api"}


def eater(mib: int, request: str = "", priority: int = 0):
    """Build a pod that holds `mib` MiB: tail keeps its input in memory, because nothing reads its output."""
    size = mib * MIB
    container = {
        "name": "main", "image": BUSYBOX_TAG, "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"head -c {size} /dev/zero | tail -c {size} | sleep 600"],
    }  # fmt: skip
    if request:
        container["resources"] = {"requests": {"memory": request}}
    return {"containers": [container], "priority": priority}


@pytest.fixture
async def rig(tmp_path, containerd, private_cgroup_root):
    rig = Rig(tmp_path, containerd.socket)
    rig.config = KubeletConfiguration(
        static_pod_path=str(rig.manifests), pod_logs_dir=str(tmp_path / "logs"), resolv_conf="",
        cgroup_root=private_cgroup_root, enforce_node_allocatable=["pods"],
        eviction_hard={"memory.available": "250Mi"}, image_gc_high_threshold_percent=100,
        eviction_pressure_transition_period=Duration(1),
    )  # fmt: skip
    view = NodeView(
        private_cgroup_root, memory_capacity=400 * MIB, pods_cgroup=f"{private_cgroup_root}/kubepods"
    )
    rig.node = Node(
        config=rig.config,
        kubengine_config=KubengineConfiguration(eviction=EvictionSection(interval=Duration(0.5))),
        runtime_endpoint=str(containerd.socket), root=rig.root, name="n1",
        options=NodeOptions(view=view),
    )  # fmt: skip
    await rig.node.start()
    yield rig
    await rig.close()


def pod_of(rig, name):
    """Return the pod of a name. A pod of the API keeps it, a static pod's ends with the node's."""
    return next((p for p in rig.node.pods() if p.metadata.name in (name, f"{name}-n1")), None)


def phase(rig, name):
    pod = pod_of(rig, name)
    return pod.status.phase if pod is not None else ""


async def test_the_pod_furthest_above_its_request_is_evicted_with_the_reason(rig):
    eviction = rig.node.components["eviction"]
    rig.write("within", eater(30, "100Mi"), annotations=API)
    rig.write("greedy", eater(25), annotations=API)
    await eventually(lambda: phase(rig, "within") == phase(rig, "greedy") == "Running")
    assert eviction.under_pressure == ()
    rig.write("greediest", eater(120), annotations=API)
    await eventually(lambda: phase(rig, "greediest") == "Failed")
    status = pod_of(rig, "greediest").status
    assert status.reason == "Evicted"
    assert status.message.startswith(
        "The node was low on resource: memory. Threshold quantity: 250Mi, available: "
    )
    disruption = next(c for c in status.conditions if c.type == "DisruptionTarget")
    assert (disruption.status, disruption.reason) == ("True", "TerminationByKubelet")
    event = next(e for e in rig.node.recorder if e.reason == "Evicted")
    assert event.annotations["starved_resource"] == "memory"
    await eventually(lambda: eviction.under_pressure == ())
    assert phase(rig, "within") == phase(rig, "greedy") == "Running"
    assert rig.node.registry.metrics["kubelet_evictions"].values == {("memory.available",): 1}


async def test_a_static_pod_is_never_evicted(rig):
    rig.write("static", eater(180))
    await eventually(lambda: rig.node.components["eviction"].under_pressure == ("MemoryPressure",))
    await eventually(lambda: "EvictionThresholdMet" in rig.reasons())
    await asyncio.sleep(1.5)
    assert phase(rig, "static") == "Running"
    assert "Evicted" not in rig.reasons()
