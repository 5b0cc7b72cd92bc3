"""Start an agent on a memory state that does not match: it keeps what is valid and reports the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EXCLUSIVE_MEMORY_GATE, KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.documents import convert
from engine.api.events import EventRecorder
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.memorymanager.manager import FILE_NAME, MemoryManager
from engine.memorymanager.state import NodeMemory
from engine.topologymanager.policy import ANYWHERE, Numa
from tests.contexts import node_context

GIB = 1 << 30


def pod_of(uid: str, gib: int, **spec: Any) -> Pod:
    """Build a Guaranteed pod of one container c with `gib` GiB."""
    amounts = {"cpu": "250m", "memory": f"{gib}Gi"}
    container = {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    meta = {"name": uid, "namespace": "d", "uid": uid}
    return convert({"metadata": meta, "spec": {"containers": [container], **spec}}, Pod, "pod")


A, B = pod_of("a", 3), pod_of("b", 6)
WHOLE = pod_of(
    "w",
    2,
    resources={"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"cpu": "1", "memory": "5Gi"}},
    initContainers=[{"name": "helper", "image": "x", "restartPolicy": "Always"}],
)


@dataclass
class Rig:
    """Run one agent after another on two NUMA nodes of `gib` GiB; node 0 reserves `reserved` GiB."""

    root: Path
    gib: tuple[int, int] = (8, 8)
    reserved: int = 1
    fields: dict[str, Any] = field(default_factory=lambda: {"memoryManagerPolicy": "Static"})

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[MemoryManager]:
        self.recorder, self.decisions = EventRecorder(lambda: 0.0), Decisions(lambda: 0.0)
        reservation = [{"numaNode": 0, "limits": {"memory": f"{self.reserved}Gi"}}]
        manager = MemoryManager(
            node_context(
                convert({**self.fields, "reservedMemory": reservation}, KubeletConfiguration, "config"),
                root=self.root,
                recorder=self.recorder,
                decisions=self.decisions,
            ),
            machine=lambda: [NodeMemory(node, size * GIB) for node, size in enumerate(self.gib)],
            numa=Numa((0, 1)),
            reserved={"memory": Quantity.parse(f"{self.reserved}Gi")},
        )
        await manager.start()
        try:
            yield manager
        finally:
            await manager.stop()

    def adopt(self, manager: MemoryManager, *pods: Pod) -> dict[str, str]:
        """Let an agent adopt running pods, and return the NUMA nodes of each by uid."""
        for pod in pods:
            manager.adopted(pod, lambda pod, container: ANYWHERE)
        return {pod.uid: manager.mems(pod, "c") for pod in pods}

    def messages(self, reason: str) -> list[str]:
        return [event.message for event in self.recorder if event.reason == reason]


def reserved_bytes(manager: MemoryManager, uid: str) -> int:
    """Return the bytes that the pod's container has reserved."""
    assert manager.policy is not None
    return sum(block.size for block in manager.policy.state.held(uid, "c") or ())


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    """Return a machine on which pod a has memory of node 0, and pod b of node 1."""
    rig = Rig(tmp_path)
    async with rig.agent() as manager:
        manager.allocate(A, A.spec.containers[0], ANYWHERE)
        manager.allocate(B, B.spec.containers[0], ANYWHERE)
    return rig


async def test_the_same_machine_says_nothing(rig: Rig) -> None:
    before = (rig.root / FILE_NAME).read_bytes()
    async with rig.agent() as manager:
        assert rig.adopt(manager, A, B) == {"a": "0", "b": "1"}
    assert (rig.root / FILE_NAME).read_bytes() == before
    assert rig.messages("MemoryManagerStateChanged") == rig.messages("MemoryReassigned") == []


async def test_a_larger_reservation_moves_only_the_pod_that_it_concerns(rig: Rig) -> None:
    rig.reserved = 6
    async with rig.agent() as manager:
        assert rig.adopt(manager, A, B) == {"a": "", "b": "1"}
    (changed,) = rig.messages("MemoryManagerStateChanged")
    assert changed.endswith(f"c of pod a: NUMA nodes [0] have {2 * GIB} bytes of memory left, not {3 * GIB}")
    (message,) = rig.messages("MemoryReassigned")
    assert message.startswith("Container c has no reserved memory from now on: ")
    (decision,) = [one for one in rig.decisions.after(0) if one.outcome == "reassigned"]
    assert decision.inputs["reason"] in changed


async def test_memory_that_was_added_is_used(rig: Rig) -> None:
    rig.gib = (8, 16)
    async with rig.agent() as manager:
        assert rig.adopt(manager, A, B) == {"a": "0", "b": "1"}
    assert rig.messages("MemoryManagerStateChanged") == [
        f"NUMA node 1 has {16 * GIB} bytes of memory to give, and had {8 * GIB}"
    ]


@pytest.mark.parametrize("gib", [1, 5])
async def test_a_resize_that_a_kubelet_admitted_is_reserved(rig: Rig, gib: int) -> None:
    """A kubelet with the gate changes the amounts of a running pod, and not what it has reserved."""
    rig.fields = {**rig.fields, "featureGates": {EXCLUSIVE_MEMORY_GATE: True}}
    async with rig.agent() as manager:
        assert rig.adopt(manager, pod_of("a", gib), B) == {"a": "0", "b": "1"}
        assert reserved_bytes(manager, "a") == gib * GIB
    assert rig.messages("MemoryReassigned") == []


async def test_a_resize_that_a_kubelet_admitted_may_find_too_little_memory(rig: Rig) -> None:
    rig.fields = {**rig.fields, "featureGates": {EXCLUSIVE_MEMORY_GATE: True}}
    async with rig.agent() as manager:
        assert rig.adopt(manager, pod_of("a", 8)) == {"a": "0"}
        assert reserved_bytes(manager, "a") == 3 * GIB
    (message,) = rig.messages("MemoryReassigned")
    assert message.startswith(
        "The pod keeps less reserved memory than it requests: Container c has its memory"
    )


async def test_the_policy_may_change_both_ways(rig: Rig) -> None:
    static = rig.fields
    rig.fields = {}
    async with rig.agent():
        pass
    rig.fields = static
    async with rig.agent() as manager:
        assert rig.adopt(manager, A, B) == {"a": "0", "b": "1"}
    assert rig.messages("MemoryManagerStateChanged") == ["the policy was 'None'"]
    assert len(rig.messages("MemoryReassigned")) == 2


@pytest.mark.parametrize("damage", [b"", b"\xff", b'{"policyName":"Static","checksum":1}'])
async def test_a_damaged_file_is_set_aside(rig: Rig, damage: bytes) -> None:
    (rig.root / FILE_NAME).write_bytes(damage)
    async with rig.agent() as manager:
        assert rig.adopt(manager, A, B) == {"a": "0", "b": "1"}
    assert "reserving memory for running pods again" in rig.messages("MemoryManagerStateChanged")[0]


async def test_a_whole_pod_keeps_its_memory_through_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fields |= {
        "featureGates": {"PodLevelResourceManagers": True},
        "topologyManagerPolicy": "best-effort",
        "topologyManagerScope": "pod",
    }
    async with rig.agent() as manager:
        assert manager.concerns(WHOLE)
        manager.allocate_pod(WHOLE, ANYWHERE)
    before = (rig.root / FILE_NAME).read_bytes()
    block = f'{{"numaAffinity":[0],"type":"memory","size":{5 * GIB}}}'
    assert f'"podEntries":{{"w":{{"memoryBlocks":[{block}]}}}}'.encode() in before

    async with rig.agent() as manager:
        assert rig.adopt(manager, WHOLE) == {"w": "0"}
        assert manager.mems(WHOLE, "helper") == "0"
    assert (rig.root / FILE_NAME).read_bytes() == before
    assert rig.messages("MemoryManagerStateChanged") == []

    rig.gib = (4, 8)
    async with rig.agent() as manager:
        assert rig.adopt(manager, WHOLE) == {"w": "1"}
        manager.release("w")
        assert manager.policy is not None
        assert all(not node.number_of_assignments for node in manager.policy.state.nodes.values())
    assert rig.messages("MemoryReassigned")[0].startswith("The pod now has reserved memory on NUMA nodes [1]")

    rig.gib = (8, 8)
    (rig.root / FILE_NAME).write_bytes(before)
    del rig.fields["featureGates"]
    async with rig.agent() as manager:
        assert rig.adopt(manager, WHOLE) == {"w": ""}
    assert "the feature gate PodLevelResourceManagers is off" in rig.messages("MemoryManagerStateChanged")[0]
