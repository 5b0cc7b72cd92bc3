"""Start an agent on a state file that does not match: it keeps what is valid and reports the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.config import EXCLUSIVE_CPUS_GATE
from engine.cpumanager.checkpoint import CpuCheckpoint, encode
from engine.cpumanager.moving import RunningContainer
from tests.cpumanager.rig import Rig, anywhere, pinned_pod, settled

A, B = pinned_pod("a", 2), pinned_pod("b", 2)


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    """Return a machine on which an agent has given CPUs 1 and 5 to pod a, and 2 and 6 to pod b."""
    rig = Rig(tmp_path)
    async with rig.agent() as manager:
        rig.start_pod(manager, A)
        rig.start_pod(manager, B)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("1,5", "2,6")
    return rig


async def test_the_same_settings_change_nothing_and_say_nothing(rig: Rig) -> None:
    before = rig.file.read_bytes()
    async with rig.agent() as manager:
        for pod in (A, B):
            manager.adopted(pod, anywhere)
        await settled(manager)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("1,5", "2,6")
    assert rig.file.read_bytes() == before
    assert rig.messages("CPUManagerStateChanged") == rig.messages("CPUsReassigned") == []


async def test_a_larger_reservation_moves_only_the_pod_that_it_concerns(rig: Rig) -> None:
    rig.config["reservedSystemCPUs"] = "0-1"
    async with rig.agent() as manager:
        assert rig.messages("CPUManagerStateChanged") == ["c of pod a had 1,5: CPUs 1 are reserved"]
        for pod in (A, B):
            manager.adopted(pod, anywhere)
        await settled(manager)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("3,7", "2,6")
        assert rig.moved["id-of-a"] == "3,7"
    assert rig.messages("CPUsReassigned") == [
        "Container c now has CPUs 3,7 instead of 1,5: CPUs 1 are reserved"
    ]
    (decision,) = [one for one in rig.decisions.after(0) if one.outcome == "reassigned"]
    assert decision.inputs == {"before": "1,5", "reason": "CPUs 1 are reserved"}


async def test_cpus_that_are_gone_are_replaced(rig: Rig) -> None:
    rig.online &= ~(1 << 6)
    async with rig.agent() as manager:
        assert rig.messages("CPUManagerStateChanged") == [
            "the online CPUs are 0-5,7, and were 0-7; c of pod b had 2,6: CPUs 6 are offline"
        ]
        for pod in (A, B):
            manager.adopted(pod, anywhere)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("1,5", "2,4")


async def test_pods_share_if_too_few_cpus_are_left(rig: Rig) -> None:
    rig.online = 0b10111
    async with rig.agent() as manager:
        for pod in (A, B):
            manager.adopted(pod, anywhere)
        await settled(manager)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("1-2", None)
        assert rig.moved["id-of-b"] == "0,4"
    assert rig.messages("CPUsReassigned")[1].startswith("Container c shares CPUs from now on: ")


async def test_a_resize_that_a_kubelet_admitted_is_made(rig: Rig) -> None:
    """A kubelet with the gate changes the amounts of a running pod, and leaves its CPUs as they are."""
    rig.config["featureGates"] = {EXCLUSIVE_CPUS_GATE: True}
    async with rig.agent() as manager:
        manager.adopted(pinned_pod("a", 4), anywhere)
        manager.adopted(B, anywhere)
        await settled(manager)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("1,3,5,7", "2,6")
        assert rig.moved["id-of-a"] == "1,3,5,7"
    assert rig.messages("CPUsReassigned") == ["Container c was resized, and has CPUs 1,3,5,7 instead of 1,5"]
    async with rig.agent() as manager:
        manager.adopted(pinned_pod("a", 4), anywhere)
        assert rig.held(manager, "a") == "1,3,5,7"
        assert rig.messages("CPUsReassigned") == []


async def test_a_resize_that_a_kubelet_admitted_may_find_too_few_cpus(rig: Rig) -> None:
    rig.config["featureGates"] = {EXCLUSIVE_CPUS_GATE: True}
    async with rig.agent() as manager:
        manager.adopted(pinned_pod("a", 6), anywhere)
        assert rig.held(manager, "a") == "1,5"
    assert rig.messages("CPUsReassigned") == [
        "Container c keeps CPUs 1,5, fewer than it requests: "
        "Container c needs 4 more exclusive CPUs, and 3 are free"
    ]


async def test_without_the_gate_a_running_pod_keeps_the_cpus_that_it_has(rig: Rig) -> None:
    async with rig.agent() as manager:
        manager.adopted(pinned_pod("a", 4), anywhere)
        assert rig.held(manager, "a") == "1,5"


@pytest.mark.parametrize("policy", ["none", "static"])
async def test_the_policy_may_change_both_ways(rig: Rig, policy: str) -> None:
    rig.config = {"cpuManagerPolicy": "none"}
    async with rig.agent():
        pass
    assert rig.file.read_bytes().startswith(b'{"policyName":"none"')
    rig.config = {"cpuManagerPolicy": policy, "reservedSystemCPUs": "0"}
    async with rig.agent() as manager:
        manager.adopted(A, anywhere)
        if policy == "static":
            assert rig.held(manager, "a") == "1,5"
            assert rig.messages("CPUManagerStateChanged") == ["the policy was 'none'"]
            assert len(rig.messages("CPUsReassigned")) == 1


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\x00", b'{"policyName":"static","checksum":1}'])
async def test_a_damaged_file_is_set_aside(rig: Rig, damage: bytes) -> None:
    rig.file.write_bytes(damage)
    async with rig.agent() as manager:
        for pod in (A, B):
            manager.adopted(pod, anywhere)
        await settled(manager)
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("1,5", "2,6")
        if damage != b"{}":
            assert (
                "choosing exclusive CPUs for running pods again" in rig.messages("CPUManagerStateChanged")[0]
            )
    assert b'"a":{"c":"1,5"}' in rig.file.read_bytes()


async def test_version_1_is_read_by_the_ids_of_running_containers(tmp_path: Path) -> None:
    """Nobody gets the CPUs before the containers are known, and a container that is gone loses its own."""
    rig = Rig(tmp_path)
    rig.file.write_bytes(
        b'{"policyName":"static","defaultCpuSet":"0-1,4-5","entries":{"id-of-a":"2,6","gone":"3,7"},'
        b'"checksum":0}'
    )
    async with rig.agent() as manager:
        rig.start_pod(manager, B)
        assert rig.held(manager, "b") == "1,5"
        await settled(manager)
    rig.running.append(RunningContainer("a", "c", "id-of-a"))
    async with rig.agent() as manager:
        manager.adopted(A, anywhere)
        manager.adopted(B, anywhere)
        manager.collect({"a", "b"})
        assert (rig.held(manager, "a"), rig.held(manager, "b")) == ("2,6", "1,5")
    assert rig.file.read_bytes().startswith(
        b'{"policyName":"static","defaultCpuSet":"0,3-4,7","entries":{"a":{"c":"2,6"},"b":{"c":"1,5"}}'
    )
    assert rig.messages("CPUsReassigned") == []


WHOLE = pinned_pod(
    "w",
    1,
    resources={"requests": {"cpu": "3", "memory": "1Gi"}, "limits": {"cpu": "3", "memory": "1Gi"}},
    initContainers=[{"name": "helper", "image": "x", "restartPolicy": "Always"}],
)
POD_LEVEL = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "featureGates": {"PodLevelResourceManagers": True},
    "topologyManagerPolicy": "best-effort",
    "topologyManagerScope": "pod",
}


async def pod_level_rig(tmp_path: Path) -> Rig:
    """Return a machine on which pod w has CPUs 1, 4 and 5: container c has 4, and its sidecar 1 and 5."""
    rig = Rig(tmp_path, dict(POD_LEVEL))
    async with rig.agent() as manager:
        assert manager.concerns(WHOLE)
        manager.allocate_pod(WHOLE, anywhere(WHOLE, WHOLE.spec.containers[0]))
        rig.running = [RunningContainer("w", "c", "c"), RunningContainer("w", "helper", "helper")]
        await settled(manager)
    assert rig.moved == {"c": "4", "helper": "1,5"}
    return rig


async def test_a_whole_pod_keeps_its_cpus_through_a_restart(tmp_path: Path) -> None:
    rig = await pod_level_rig(tmp_path)
    before = rig.file.read_bytes()
    assert b'"podEntries":{"w":{"cpuSet":"1,4-5"}}' in before
    async with rig.agent() as manager:
        manager.adopted(WHOLE, anywhere)
        await settled(manager)
        assert manager.policy is not None
        assert manager.policy.state.shared == 0b11001101
        assert manager.is_exclusive(WHOLE, "c")
        assert not manager.is_exclusive(WHOLE, "helper")
        assert not manager.is_exclusive(WHOLE)
        manager.release("w")
        assert manager.policy.state.shared == 0xFF
    assert before != rig.file.read_bytes()
    assert rig.messages("CPUManagerStateChanged") == []


async def test_a_whole_pod_that_lost_a_cpu_gets_others(tmp_path: Path) -> None:
    rig = await pod_level_rig(tmp_path)
    rig.online &= ~(1 << 5)
    async with rig.agent() as manager:
        manager.adopted(WHOLE, anywhere)
        await settled(manager)
    assert rig.messages("CPUsReassigned") == [
        "The pod now has CPUs 1-2,4 because its CPUs are lost: CPUs 5 are offline"
    ]


async def test_without_the_gate_a_whole_pod_shares(tmp_path: Path) -> None:
    rig = await pod_level_rig(tmp_path)
    rig.config["featureGates"] = {}
    async with rig.agent() as manager:
        manager.adopted(WHOLE, anywhere)
        await settled(manager)
        assert rig.moved == {"c": "0-7", "helper": "0-7"}
    assert "the feature gate PodLevelResourceManagers is off" in rig.messages("CPUManagerStateChanged")[0]


async def test_a_pod_entry_that_its_containers_exceed_is_not_kept(tmp_path: Path) -> None:
    rig = await pod_level_rig(tmp_path)
    entries = {"w": {"c": "4", "helper": "2,6"}}
    rig.file.write_bytes(encode(CpuCheckpoint("static", "0,2-3,6-7", entries, {"w": "1,4-5"})))
    async with rig.agent() as manager:
        manager.adopted(WHOLE, anywhere)
        assert manager.policy is not None
        assert manager.policy.state.pods["w"].bit_count() == 3
    assert "CPUs 2,6 of its container helper" in rig.messages("CPUManagerStateChanged")[0]
