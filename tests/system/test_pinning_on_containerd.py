"""Exclusive CPUs on a real containerd: each container's cpuset, through restarts and damage."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from engine.api import cpu_set
from engine.api.config import EXCLUSIVE_CPUS_GATE, EXCLUSIVE_MEMORY_GATE, MemoryReservation
from engine.api.quantity import Quantity
from engine.wire import podresources_v1_pb2 as v1
from engine.wire.podresources_v1_pb2_grpc import PodResourcesListerStub
from tests.node_rig import Rig
from tests.system.busybox import container
from tests.waiting import eventually

WHOLE = {"limits": {"cpu": "1", "memory": "64Mi"}}
ALL = f"0-{os.cpu_count() - 1}" if (os.cpu_count() or 0) > 1 else "0"
OTHERS = ALL.replace("0-1", "0") if os.cpu_count() == 2 else "0," + ALL.replace("0-", "2-")

CGROUPS = Path("/sys/fs/cgroup")
V2 = (CGROUPS / "cgroup.controllers").exists()

pytestmark = [
    pytest.mark.containerd,
    pytest.mark.root,
    pytest.mark.skipif((os.cpu_count() or 0) < 2, reason="exclusive CPUs need two CPUs"),
]


@pytest.fixture
def pinned(rig: Rig) -> Rig:
    """Configure the node to reserve CPU 0 and to give the other CPUs away as exclusive ones."""
    rig.config.cpu_manager_policy = "static"
    rig.config.reserved_system_cpus = "0"
    rig.config.memory_manager_policy = "Static"
    rig.config.system_reserved = {"memory": "64Mi"}
    rig.config.reserved_memory = [MemoryReservation(0, {"memory": Quantity.parse("64Mi")})]
    rig.config.topology_manager_policy = "single-numa-node"
    return rig


def running_id(rig: Rig, name: str) -> str:
    pod = rig.pod(name)
    assert pod is not None
    status = pod.status.container_statuses[0]
    return status.container_id.rpartition("/")[2] if status.state.running else ""


def group(rig: Rig, name: str, controller: str = "cpuset") -> Path:
    pod = rig.pod(name)
    assert pod is not None
    root = CGROUPS if V2 else CGROUPS / controller
    level = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}[pod.status.qos_class]
    pods = root / rig.config.cgroup_root.lstrip("/") / "kubepods" / level
    return pods / f"pod{pod.uid}" / running_id(rig, name)


def quota(group: Path) -> str:
    """Return the CFS quota of a cgroup, as the kernel writes it."""
    return (group / ("cpu.max" if V2 else "cpu.cfs_quota_us")).read_text().split()[0]


def cpuset(rig: Rig, name: str) -> str:
    if rig.phase(name) != "Running" or not running_id(rig, name):
        return ""
    return (group(rig, name) / "cpuset.cpus").read_text().strip()


async def shown_in_pod_resources(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(f"unix://{rig.root}/pod-resources/kubelet.sock") as channel:
        stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        listed = await stub.List(v1.ListPodResourcesRequest())
        allocatable = await stub.GetAllocatableResources(v1.AllocatableResourcesRequest())
    found = {pod.name: pod.containers[0] for pod in listed.pod_resources}
    assert list(found["alone-n1"].cpu_ids) == [1]
    assert list(found["shared-n1"].cpu_ids) == []
    (memory,) = found["alone-n1"].memory
    assert (memory.memory_type, memory.size, memory.topology.nodes[0].ID) == ("memory", 64 << 20, 0)
    assert 1 in allocatable.cpu_ids
    assert 0 not in allocatable.cpu_ids
    assert [block.memory_type for block in allocatable.memory] == ["memory"]


async def test_a_pinned_container_is_alone_on_its_cpu_through_restarts_and_damage(pinned: Rig) -> None:
    rig = pinned
    state = rig.root / "cpu_manager_state"
    await rig.start()
    rig.write("shared", {"containers": [container(resources={"requests": {"memory": "16Mi"}})]})
    await eventually(lambda: cpuset(rig, "shared") == ALL)
    rig.write("alone", {"containers": [container(resources=WHOLE)]})
    await eventually(lambda: cpuset(rig, "alone") == "1" and cpuset(rig, "shared") == OTHERS)
    assert (group(rig, "alone") / "cpuset.mems").read_text().strip() == "0"
    assert quota(group(rig, "alone", "cpu")) in ("-1", "max")
    assert quota(group(rig, "alone", "cpu").parent) in ("-1", "max")
    before, identity = state.read_bytes(), running_id(rig, "alone")
    await shown_in_pod_resources(rig)

    await rig.restart()
    await eventually(lambda: cpuset(rig, "alone") == "1" and cpuset(rig, "shared") == OTHERS)
    assert (state.read_bytes(), running_id(rig, "alone")) == (before, identity)

    await rig.stop()
    state.write_bytes(before.replace(b'"1"', b'"0"'))
    await rig.start()
    await eventually(lambda: state.read_bytes() == before)
    assert "CPUManagerStateChanged" in rig.reasons()
    await eventually(lambda: "CPUsReassigned" in rig.reasons())
    # The event precedes the move; a pass before the pod was adopted may have given it the shared CPUs.
    await eventually(lambda: cpuset(rig, "alone") == "1")
    assert running_id(rig, "alone") == identity

    (rig.manifests / "alone.yaml").unlink()
    await eventually(lambda: rig.pod("alone") is None and cpuset(rig, "shared") == ALL)


async def test_a_pinned_pod_is_resized(pinned: Rig) -> None:
    """Memory changes, and CPUs as far as the machine has some to spare."""
    rig = pinned
    rig.config.feature_gates = {EXCLUSIVE_CPUS_GATE: True, EXCLUSIVE_MEMORY_GATE: True}
    await rig.start()

    def resize(cpus: int, memory: str) -> None:
        limits = {"cpu": str(cpus), "memory": memory}
        rig.write("alone", {"containers": [container(resources={"limits": limits})]})

    def requested() -> tuple[int, int]:
        pod = rig.pod("alone")
        assert pod is not None
        requests = pod.spec.containers[0].requests
        return requests["cpu"].value, requests["memory"].value >> 20

    rig.write("shared", {"containers": [container(resources={"requests": {"memory": "16Mi"}})]})
    resize(1, "64Mi")
    await eventually(lambda: cpuset(rig, "alone") == "1" and cpuset(rig, "shared") == OTHERS)
    identity = running_id(rig, "alone")
    resize(1, "96Mi")
    await eventually(lambda: requested() == (1, 96))
    assert b"100663296" in (rig.root / "memory_manager_state").read_bytes()
    resize((os.cpu_count() or 0) + 1, "96Mi")
    await eventually(lambda: "ResizeInfeasible" in rig.reasons())
    if (os.cpu_count() or 0) > 2:
        resize(2, "96Mi")
        await eventually(lambda: requested() == (2, 96))
        grown = cpu_set.parse(cpuset(rig, "alone"))
        assert grown.bit_count() == 2
        assert grown & 0b10
        assert not grown & cpu_set.parse(cpuset(rig, "shared"))
        resize(1, "96Mi")
        await eventually(lambda: requested() == (1, 96))
    assert cpuset(rig, "alone") == "1"
    assert quota(group(rig, "alone", "cpu")) in ("-1", "max")
    assert running_id(rig, "alone") == identity


async def test_pods_that_run_are_pinned_when_the_policy_becomes_static(pinned: Rig) -> None:
    rig = pinned
    rig.config.cpu_manager_policy = "none"
    await rig.start()
    rig.write("alone", {"containers": [container(resources=WHOLE)]})
    await eventually(lambda: cpuset(rig, "alone") == ALL)
    identity = running_id(rig, "alone")
    await rig.stop()
    rig.config.cpu_manager_policy = "static"
    await rig.start()
    await eventually(lambda: cpuset(rig, "alone") == "1")
    assert running_id(rig, "alone") == identity
    assert {"CPUManagerStateChanged", "CPUsReassigned"} <= set(rig.reasons())
