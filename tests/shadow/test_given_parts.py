"""Devices, memory and the pod-resources API, repeated from the kubelet's state files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.api.pod import Pod, ResourceRequirements
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.devices.checkpoint import Checkpoint, CheckpointEntry
from engine.dra.table import ClaimState, PreparedDevice
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.state import Block, MemoryTable, NodeState
from engine.shadow.kinds.alignment import Alignment
from engine.shadow.kinds.choices import ChoiceComparer, ManagerAssignments
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.devices import DeviceComparer
from engine.shadow.kinds.memory import MemoryRules
from engine.shadow.kinds.observation import Observation, SeenResources
from engine.shadow.kinds.pod_resources import NOTHING, compare_resources
from engine.topologymanager.policy import Numa, TopologyPolicy
from engine.wire import podresources_v1_pb2 as v1
from tests.ports import free_port
from tests.shadow.observations import observed, pod, ran, record
from tests.shadow.test_beside_kubelet import Report, command
from tests.shadow.test_cpu_choice import rules
from tests.system.busybox import container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import wait_until

GPU = "example.com/gpu"


def sides(found: list[Finding]) -> dict[str, tuple[str, str]]:
    return {one.subject: (one.ours, one.kubelets) for one in found if isinstance(one, Comparison)}


def why(found: list[Finding]) -> list[str]:
    return [one.why for one in found if isinstance(one, NotJudged)]


# Devices


def asking(name: str, count: int = 1, *, init: int = 0, order: int = 0) -> Pod:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i", "resources": gpus(count)}]}
    if init:
        spec["initContainers"] = [{"name": "first", "image": "i", "resources": gpus(init)}]
    return pod(name, spec, order=order)


def gpus(count: int) -> dict[str, Any]:
    return {"limits": {GPU: str(count)}}


def with_devices(pods: list[Pod], *, healthy: str = "abcd", **held: str) -> Observation:
    """Return an observation of pods that hold devices.

    `p` is the container c of a pod, `p_first` its init container.
    """
    entries = []
    for key, ids in held.items():
        name, _, container = key.partition("_")
        entries.append(
            CheckpointEntry(
                pod_uid=f"uid-{name}", container_name=container or "c", resource_name=GPU,
                device_ids={-1: list(ids)},
            )
        )  # fmt: skip
    checkpoint = Checkpoint(pod_device_entries=entries, registered_devices={GPU: list(healthy)})
    return replace(observed(pods, [record(one, ran(0)) for one in pods]), devices=checkpoint)


def devices_of(*observations: Observation) -> list[Finding]:
    comparer = DeviceComparer()
    list(comparer.compare(with_devices([])))
    found: list[Finding] = []
    for one in observations:
        found = list(comparer.compare(one))
    return found


def test_any_of_the_free_devices_is_as_good_as_another() -> None:
    for ids in ("ab", "cd", "bd"):
        found = sides(devices_of(with_devices([asking("p", 2)], p=ids)))
        assert found == {f"default/p/c {GPU}": (", ".join(ids),) * 2}


def test_a_device_that_another_pod_holds_and_an_unhealthy_one_differ() -> None:
    first, second = asking("first"), asking("second", order=1)
    found = sides(devices_of(with_devices([first, second], first="a", second="a")))
    assert found[f"default/second/c {GPU}"] == ("b", "a")
    found = sides(devices_of(with_devices([first], first="d", healthy="abc")))
    assert found[f"default/first/c {GPU}"] == ("a", "d")


def test_the_count_must_be_met() -> None:
    assert sides(devices_of(with_devices([asking("p", 2)], p="a")))[f"default/p/c {GPU}"] == ("a, b", "a")
    assert sides(devices_of(with_devices([asking("p")])))[f"default/p/c {GPU}"] == ("a", "none")
    found = devices_of(with_devices([asking("p", 3)], healthy="ab"))
    assert sides(found) == {f"default/p/c {GPU}": ("none", "none")}


def test_what_an_init_container_leaves_is_taken_first() -> None:
    both = asking("p", 2, init=1)
    good = sides(devices_of(with_devices([both], p_first="c", p="ac")))
    assert all(ours == theirs for ours, theirs in good.values())
    assert len(good) == 2
    bad = sides(devices_of(with_devices([both], p_first="c", p="ab")))
    assert bad[f"default/p/c {GPU}"] == ("c, a", "a, b") or bad[f"default/p/c {GPU}"] == ("a, c", "a, b")


def test_a_refusal_for_want_of_devices_agrees_if_none_are_free() -> None:
    text = f"requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"
    spec = {"containers": [{"name": "c", "image": "i", "resources": gpus(1)}]}
    late = pod("late", spec, order=2, phase="Failed", reason="UnexpectedAdmissionError", message=text)
    holder = asking("p", 4)
    full, freed = with_devices([holder, late], p="abcd"), with_devices([late])
    assert sides(devices_of(full))[f"default/late {GPU}"] == ("refused", "refused")
    before = with_devices([holder], p="abcd")
    assert sides(devices_of(before, freed))[f"default/late {GPU}"] == ("refused", "refused")
    assert sides(devices_of(freed))[f"default/late {GPU}"] == ("admitted", "refused")


def test_a_choice_is_judged_once_and_not_if_it_is_older_than_the_first_observation() -> None:
    one = asking("p")
    later = with_devices([one], p="a", healthy="bcd")
    assert sides(devices_of(with_devices([one], p="a"), later)) == {f"default/p/c {GPU}": ("a", "a")}
    assert why(list(DeviceComparer().compare(with_devices([one], p="a")))) == [
        "chosen before the first observation"
    ]


def test_without_a_plugin_nothing_is_said_about_devices() -> None:
    found = list(DeviceComparer().compare(observed([])))
    assert found == [NotJudged("devices", "node", "no device plugin has registered")]


# Memory


def guaranteed(name: str, memory: str, order: int = 0) -> Pod:
    amounts = {"requests": {"cpu": "100m", "memory": memory}, "limits": {"cpu": "100m", "memory": memory}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": amounts}]}
    return pod(name, spec, order=order, qosClass="Guaranteed")


def with_memory(pods: list[Pod], **held: tuple[int, int]) -> Observation:
    """Return an observation of two NUMA nodes of 1000 bytes each.

    `held` is the NUMA node and the bytes of each pod.
    """
    machine = {
        node: NodeState(0, {"memory": MemoryTable(1000, 0, 1000, 0, 1000)}, (node,)) for node in (0, 1)
    }
    entries = {f"uid-{name}": {"c": [Block((node,), "memory", size)]} for name, (node, size) in held.items()}
    for node, size in held.values():
        table = machine[node].memory_map["memory"]
        table.reserved, table.free = table.reserved + size, table.free - size
        machine[node].number_of_assignments += 1
    found = observed(pods, [record(one, ran(0)) for one in pods])
    return replace(found, memory=MemoryCheckpoint("Static", machine, entries))


def memory_of(*observations: Observation, policy: str = "none", **fields: Any) -> list[Finding]:
    config = convert({"memoryManagerPolicy": "Static", **fields}, KubeletConfiguration, "test")
    comparer, before = ChoiceComparer(), None
    found: list[Finding] = []
    for one in observations:
        assert one.memory is not None
        alignment = Alignment(TopologyPolicy(policy, numa=Numa((0, 1))), one, before)
        parts = [ManagerAssignments("memory", MemoryRules.of(config, one.memory), one.memory.entries)]
        found, before = list(comparer.compare(one, parts, alignment)), one
    return found


def test_memory_comes_from_the_first_node_that_has_enough() -> None:
    a, b = guaranteed("a", "600"), guaranteed("b", "600", 1)
    found = memory_of(with_memory([]), with_memory([a, b], a=(0, 600), b=(1, 600)))
    assert sides(found) == {
        "default/a/c": ("600 bytes of memory on NUMA 0",) * 2,
        "default/b/c": ("600 bytes of memory on NUMA 1",) * 2,
    }
    other = memory_of(with_memory([]), with_memory([a], a=(1, 600)))
    assert sides(other)["default/a/c"] == ("600 bytes of memory on NUMA 0", "600 bytes of memory on NUMA 1")
    (one,) = other
    assert isinstance(one, Comparison)
    assert one.our_reason == "bytes that were free by NUMA node: memory 1000, 1000"


def test_memory_that_was_reserved_before_is_not_free() -> None:
    a, b = guaranteed("a", "600"), guaranteed("b", "600", 1)
    observations = with_memory([]), with_memory([a], a=(0, 600)), with_memory([a, b], a=(0, 600), b=(0, 600))
    assert sides(memory_of(*observations))["default/b/c"] == (
        "600 bytes of memory on NUMA 1", "600 bytes of memory on NUMA 0"
    )  # fmt: skip


def test_what_an_init_container_leaves_is_taken_over() -> None:
    one = guaranteed("p", "600")
    (app,) = one.spec.containers
    one.spec.init_containers = [msgspec.structs.replace(app, name="first")]
    after = with_memory([one], p=(0, 600))
    assert after.memory is not None
    after.memory.entries["uid-p"]["first"] = [Block((0,), "memory", 0)]
    assert sides(memory_of(with_memory([]), after)) == {
        "default/p/first": ("0 bytes of memory on NUMA 0",) * 2,
        "default/p/c": ("600 bytes of memory on NUMA 0",) * 2,
    }


def test_memory_is_not_judged_without_the_policy() -> None:
    observations = with_memory([]), with_memory([guaranteed("a", "600")], a=(0, 600))
    assert why(memory_of(*observations, memoryManagerPolicy="None")) == [
        "the kubelet has no static policy for them"
    ]


def aligned(
    pods: list[Pod], *, devices: str = "", known: bool = True, **held: tuple[int, int]
) -> Observation:
    """Return an observation of memory and devices; a and b are at NUMA node 0, c and d at node 1.

    Each pod holds `devices`. The topology of devices is observed only if `known`.
    """
    entries = {f"{one.metadata.name}_c": devices for one in pods if devices}
    found = replace(with_memory(pods, **held), devices=with_devices(pods, **entries).devices)
    listed = [
        v1.ContainerDevices(
            resource_name=GPU,
            device_ids=[id],
            topology=v1.TopologyInfo(nodes=[v1.NUMANode(ID=int(id > "b"))]),
        )
        for id in "abcd"
    ]
    answer = SeenResources({}, v1.AllocatableResourcesResponse(devices=listed))
    return replace(found, resources=answer if known else None)


def test_the_topology_policy_puts_memory_next_to_the_devices() -> None:
    holder = asking("h", 2)
    one = guaranteed("a", "600", 1)
    amounts = {"cpu": "100m", "memory": "600", GPU: "1"}
    both = {"requests": amounts, "limits": amounts}
    one.spec.containers[0].resources = convert(both, ResourceRequirements, "test")
    # The devices of node 0 are taken, so all of it goes to node 1.
    before = aligned([holder], devices="ab")
    after = aligned([holder, one], a=(1, 600))
    after = replace(after, devices=with_devices([holder, one], h="ab", a="c").devices)
    found = memory_of(before, after, policy="single-numa-node")
    assert sides(found) == {"default/a/c": ("600 bytes of memory on NUMA 1",) * 2}
    assert sides(memory_of(before, after))["default/a/c"][0] == "600 bytes of memory on NUMA 0"
    full = aligned([holder], devices="abcd")
    (found_none,) = memory_of(full, after, policy="single-numa-node")
    assert isinstance(found_none, Comparison)
    assert (found_none.ours, found_none.our_reason) == (
        "none", "Resources cannot be allocated with Topology locality"
    )  # fmt: skip
    unknown = memory_of(before, replace(after, resources=None), policy="restricted")
    assert why(unknown) == ["the NUMA nodes of its devices are not known"]


# The pod-resources API


def listed(seen: Observation, cpus: list[int], allocatable: list[int] | None = None) -> Observation:
    """Return the observation with a pod-resources answer about its only pod."""
    (one,) = seen.pods.values()
    container = v1.ContainerResources(name="c", cpu_ids=cpus)
    resources = v1.PodResources(name=one.metadata.name, namespace="default", containers=[container])
    answer = v1.AllocatableResourcesResponse(
        cpu_ids=[1, 2, 3, 5, 6, 7] if allocatable is None else allocatable
    )
    return replace(seen, resources=SeenResources({one.full_name: resources}, answer))


def pinned(cpus: str = "1,5") -> Observation:
    one = pod("p")
    found = observed([one], [record(one, ran(0))])
    return replace(found, cpus=CpuCheckpoint("static", "0-7", {one.uid: {"c": cpus}} if cpus else {}))


def test_the_api_lists_what_the_state_files_have() -> None:
    found = sides(list(compare_resources(listed(pinned(), [1, 5]), rules())))
    assert found == {"default/p": ("c: CPUs 1,5",) * 2, "node": ("CPUs 1-3,5-7",) * 2}
    other = sides(list(compare_resources(listed(pinned(), [1], [1]), rules())))
    assert other == {"default/p": ("c: CPUs 1,5", "c: CPUs 1"), "node": ("CPUs 1-3,5-7", "CPUs 1")}


def test_a_pod_that_the_api_does_not_list_differs() -> None:
    seen = replace(pinned(""), resources=SeenResources({}, v1.AllocatableResourcesResponse()))
    found = sides(list(compare_resources(seen, None)))
    assert found["default/p"] == (NOTHING, "not listed")
    # Nothing of it runs: the kubelet has ended it, and has not shown that yet.
    one = pod("p")
    held = record(one, ran(0, code=0))
    held.sandboxes = [structs.replace(held.sandboxes[0], ready=False)]
    ended = replace(observed([one], [held]), resources=seen.resources)
    assert "default/p" not in sides(list(compare_resources(ended, None)))


def test_devices_and_claims_are_listed() -> None:
    spec = {
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}],
    }
    one = pod("p", spec)
    seen = with_devices([one], p="ab", healthy="a")
    claim = ClaimState("u", "mine", "default", {one.uid}, {"gpus": (PreparedDevice("pool", "d"),)})
    seen = replace(listed(seen, [], []), claims=[claim])
    found = sides(list(compare_resources(seen, None)))
    assert found["default/p"] == (f"c: {GPU} a, b; gpus pool/d", NOTHING)
    assert found["node"] == (f"{GPU} a", NOTHING)


def test_an_api_that_is_away_reassures_nobody() -> None:
    assert why(list(compare_resources(pinned(), rules()))) == ["the pod-resources API does not answer"]


@pytest.mark.containerd
@pytest.mark.root
@pytest.mark.slow
@needs_kubelet
@pytest.mark.parametrize("policy", ["none", "single-numa-node"])
def test_a_real_kubelet_gives_the_same_memory_and_devices(
    kubelet: Kubelet, tmp_path: Path, policy: str
) -> None:
    document = yaml.safe_load(kubelet.config.read_text())
    document |= {
        "topologyManagerPolicy": policy,
        "memoryManagerPolicy": "Static",
        "kubeReserved": {},
        "systemReserved": {"memory": "64Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
    }
    kubelet.config.write_text(yaml.safe_dump(document))
    kubelet.start()
    wait_until(lambda: kubelet.logged("Starting kubelet"))
    plugins = tmp_path / "root" / "device-plugins"
    address = f"127.0.0.1:{free_port()}"
    report = Report(address)
    plugin = [
        sys.executable,
        "-m",
        "engine.cli",
        "device-plugin",
        "--resource",
        GPU,
        "--count",
        "4",
        "--numa",
        "1",
    ]
    with (
        subprocess.Popen([*plugin, "--plugin-dir", str(plugins)], stdout=subprocess.DEVNULL) as devices,
        subprocess.Popen(
            command(kubelet, tmp_path, "--interval", "1s", "--listen", address), stdout=subprocess.DEVNULL
        ) as shadow,
    ):
        try:
            wait_until(
                lambda: report.shows(lambda found: found["observations"] > found["skippedObservations"] + 1)
            )
            wait_until(lambda: kubelet.logged("Device plugin connected"))
            limits = {"cpu": "100m", "memory": "16Mi", GPU: "2"}
            first = container("first", "exit 0", resources={"limits": {**limits, GPU: "1"}})
            spec = {
                "terminationGracePeriodSeconds": 1,
                # What init containers leave is part of no hint that a shadow can repeat.
                "initContainers": [first] if policy == "none" else [],
                "containers": [container(resources={"limits": limits})],
            }
            count = len(spec["initContainers"]) + 1
            manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "given"}, "spec": spec}
            (tmp_path / "manifests" / "given.yaml").write_text(yaml.safe_dump(manifest))
            wait_until(lambda: kubelet.phases() == {"given": "Running"})
            wait_until(lambda: report.shows(lambda found: found["kinds"]["devices"]["agreed"] == count))
            wait_until(lambda: report.shows(lambda found: found["kinds"]["memory"]["agreed"] == count))
            wait_until(lambda: report.shows(lambda found: found["kinds"]["pod-resources"]["agreed"] > 1))
        finally:
            shadow.terminate()
            devices.terminate()
    assert report.last["differences"] == []
    assert not report.last["faults"]
