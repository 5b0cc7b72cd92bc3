"""In-place resizes of pods with exclusive CPUs, on a machine of eight CPUs that exists for the agent only."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api.config import EXCLUSIVE_CPUS_GATE, EXCLUSIVE_MEMORY_GATE, MemoryReservation
from engine.api.errors import Refused
from engine.api.quantity import Quantity
from engine.cpumanager.topology import CpuTopology, Processor
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually

PROCESSORS = [Processor(cpu, cpu % 4, cpu % 4 // 2, 0, 0) for cpu in range(8)]
"""Four cores of two threads (0 and 4, 1 and 5, …), two caches."""


@pytest.fixture
def pinned(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a node with exclusive CPUs and memory that reserves CPU 0 and 64 MiB of memory."""
    topology = CpuTopology(PROCESSORS)
    monkeypatch.setattr("os.cpu_count", lambda: len(PROCESSORS))
    monkeypatch.setattr("engine.node.pinning.read_topology", lambda: topology)
    monkeypatch.setattr("engine.node.pinning.online_cpus", lambda: topology.cpus)
    rig.config.cpu_manager_policy = "static"
    rig.config.reserved_system_cpus = "0"
    rig.config.memory_manager_policy = "Static"
    rig.config.system_reserved = {"memory": "64Mi"}
    rig.config.reserved_memory = [MemoryReservation(0, {"memory": Quantity.parse("64Mi")})]
    rig.config.topology_manager_policy = "single-numa-node"
    rig.config.feature_gates = {EXCLUSIVE_CPUS_GATE: True, EXCLUSIVE_MEMORY_GATE: True}
    return rig


def write(rig: Rig, name: str, cpus: int, memory: str = "16Mi") -> None:
    amounts = {"cpu": str(cpus), "memory": memory}
    rig.write(name, {"containers": [container(resources={"limits": amounts})]})


def shared(rig: Rig) -> None:
    rig.write("shared", {"containers": [container()]})


def cpuset(rig: Rig, hollow: HollowRuntime, name: str) -> str:
    """Return the CPUs that the runtime received last."""
    pod = rig.pod(name)
    found = [
        each.config.linux.resources.cpuset_cpus
        for each in hollow.service.records.containers.values()
        if pod is not None and each.config.labels["io.kubernetes.pod.uid"] == pod.uid
    ]
    return found[0] if found else ""


def requested(rig: Rig, name: str) -> int:
    pod = rig.pod(name)
    assert pod is not None
    return pod.spec.containers[0].requests["cpu"].value


def pending(rig: Rig, name: str) -> tuple[str, str]:
    pod = rig.pod(name)
    conditions: list[Any] = (pod.status.conditions or []) if pod is not None else []
    return next(((c.reason, c.message) for c in conditions if c.type == "PodResizePending"), ("", ""))


async def test_a_container_grows_around_its_cpus_and_shrinks_back(pinned: Rig, hollow: HollowRuntime) -> None:
    rig = pinned
    await rig.start()
    shared(rig)
    write(rig, "alone", 2)
    await eventually(lambda: cpuset(rig, hollow, "alone") == "1,5")
    await eventually(lambda: cpuset(rig, hollow, "shared") == "0,2-4,6-7")

    write(rig, "alone", 4, "32Mi")
    await eventually(lambda: requested(rig, "alone") == 4)
    assert cpuset(rig, hollow, "alone") == "1-2,5-6"
    assert cpuset(rig, hollow, "shared") == "0,3-4,7"
    assert (rig.root / "cpu_manager_state").read_bytes().count(b'"1-2,5-6"') == 1

    await rig.restart()
    write(rig, "alone", 3)
    await eventually(lambda: requested(rig, "alone") == 3)
    assert cpuset(rig, hollow, "alone") == "1-2,5"
    assert cpuset(rig, hollow, "shared") == "0,3-4,6-7"

    write(rig, "alone", 1)
    await eventually(lambda: pending(rig, "alone")[0] == "Infeasible")
    assert pending(rig, "alone")[1] == (
        "Container c started with the exclusive CPUs 1,5 and cannot shrink to 1 CPUs while it runs"
    )
    assert cpuset(rig, hollow, "alone") == "1-2,5"

    write(rig, "alone", 2)
    await eventually(lambda: requested(rig, "alone") == 2)
    assert cpuset(rig, hollow, "alone") == "1,5"
    assert not (rig.root / "memory_manager_state").read_bytes().count(b"33554432")


async def test_a_container_waits_for_cpus_that_another_has(pinned: Rig, hollow: HollowRuntime) -> None:
    rig = pinned
    await rig.start()
    write(rig, "first", 2)
    await eventually(lambda: cpuset(rig, hollow, "first") == "1,5")
    write(rig, "second", 4)
    await eventually(lambda: rig.phase("second") == "Running")

    write(rig, "first", 4)
    await eventually(lambda: pending(rig, "first")[0] == "Deferred")
    assert cpuset(rig, hollow, "first") == "1,5"
    (rig.manifests / "second.yaml").unlink()
    await eventually(lambda: requested(rig, "first") == 4)
    assert cpuset(rig, hollow, "first") == "1-2,5-6"


async def test_without_the_gates_a_resize_is_infeasible(pinned: Rig, hollow: HollowRuntime) -> None:
    rig = pinned
    rig.config.feature_gates = {}
    await rig.start()
    write(rig, "alone", 2)
    await eventually(lambda: cpuset(rig, hollow, "alone") == "1,5")
    write(rig, "alone", 4)
    await eventually(lambda: pending(rig, "alone")[0] == "Infeasible")
    assert pending(rig, "alone")[1] == (
        'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
    )
    write(rig, "alone", 2, "32Mi")
    await eventually(lambda: 'Memory Manager policy "Static"' in pending(rig, "alone")[1])


async def test_a_container_that_cannot_be_moved_stops_no_resize_of_others(
    pinned: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runtimes in virtual machines may refuse to change the CPUs of a container."""
    update = hollow.backend.update_resources

    async def stuck(made: Any, wanted: Any) -> None:
        if made.config.labels["io.kubernetes.pod.name"].startswith("shared"):
            raise Refused("not supported")
        await update(made, wanted)

    monkeypatch.setattr(hollow.backend, "update_resources", stuck)
    monkeypatch.setattr("engine.cpumanager.manager.SETTLE_SECONDS", 0.2)
    rig = pinned
    await rig.start()
    shared(rig)
    await eventually(lambda: rig.phase("shared") == "Running")
    write(rig, "alone", 2)
    rig.write("other", {"containers": [container(resources={"requests": {"cpu": "1", "memory": "16Mi"}})]})
    await eventually(lambda: rig.phase("alone") == rig.phase("other") == "Running")
    assert cpuset(rig, hollow, "shared") == "0-7"

    rig.write("other", {"containers": [container(resources={"requests": {"cpu": "2", "memory": "16Mi"}})]})
    write(rig, "alone", 2, "32Mi")
    await eventually(lambda: requested(rig, "other") == 2, 10)
    await eventually(lambda: rig.reasons().count("ResizeCompleted") == 2, 10)

    write(rig, "alone", 4, "32Mi")
    await eventually(lambda: "ResizeError" in rig.reasons(), 10)
    assert cpuset(rig, hollow, "alone") == "1,5"
