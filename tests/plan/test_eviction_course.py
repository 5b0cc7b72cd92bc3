"""evict answers as the agent's own eviction manager acts, step by step, on nodes whose readings follow."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cgroups.formulas.settings import CgroupSettings
from engine.eviction.cleanup import GarbageCollectors
from engine.eviction.layout import is_disk, measured_parts, with_container_filesystem
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.signals import INODES, RESOURCE_OF, Observations, SignalObservation
from engine.eviction.thresholds import thresholds_from_config
from engine.eviction.usage import ContainerUsage, Disk, PodUsage
from engine.plan import Snapshot
from engine.plan.questions.evict import EvictParameters, evict
from engine.plan.snapshot.objects import pods_of_node
from tests.contexts import node_context

LOOK = 10.0
SIGNALS = {
    "memory": ("memory.available", "allocatableMemory.available"),
    "disk": ("nodefs.available", "imagefs.available", "containerfs.available"),
    "inodes": ("nodefs.inodesFree", "imagefs.inodesFree", "containerfs.inodesFree"),
    "processes": ("pid.available",),
}


@dataclass
class Machine:
    """Stand in for the manager's readers, collectors and runtime: a killed pod frees what it used."""

    layout: str
    pods: list[Pod]
    usage: dict[str, PodUsage]
    readings: dict[str, tuple[int, int]]
    images: int = 0
    now: float = 0.0
    ended: list[str] = field(default_factory=list)
    view: Any = None

    def read(self, now: float) -> Observations:
        self.now += 0.001
        return {s: SignalObservation(free, size, self.now) for s, (size, free) in self.readings.items()}

    def quick(self, pods: list[Pod]) -> dict[str, PodUsage]:
        return {pod.uid: self.usage[pod.uid] for pod in pods}

    async def whole(self, pods: list[Pod], **_: Any) -> dict[str, PodUsage]:
        return self.quick(pods)

    async def kill(self, pod: Pod, end: Any) -> None:
        self.ended.append(pod.full_name)
        self.pods = [other for other in self.pods if other.uid != pod.uid]
        for signal in self.readings:
            self.free(signal, self.used(signal, self.usage[pod.uid]))

    def used(self, signal: str, usage: PodUsage) -> int:
        if is_disk(signal):
            disk = usage.disk(measured_parts(self.layout, signal))
            return disk.inodes if RESOURCE_OF[signal] == INODES else disk.bytes
        return usage.processes if signal == "pid.available" else usage.memory

    def free(self, signal: str, amount: int) -> None:
        size, free = self.readings[signal]
        self.readings[signal] = size, free + amount

    async def delete_unused(self) -> Any:
        for signal in self.readings:
            if signal.endswith("fs.available") and "images" in measured_parts(self.layout, signal):
                self.free(signal, self.images)
        self.images = 0
        return SimpleNamespace(error="", removed=[])


async def acted(machine: Machine, config: KubeletConfiguration) -> tuple[str, EvictionManager]:
    """Synchronize until no threshold is met (`relieved`) or no pod can be evicted (`stuck`).

    Return `calm` if none was met, and the manager.
    """
    manager = EvictionManager(
        node_context(
            msgspec.structs.replace(config, local_storage_capacity_isolation=False),
            recorder=EventRecorder(lambda: 0.0),
        ),
        EvictablePods(active=lambda: machine.pods, kill=machine.kill, cgroup=lambda uid: None),
        collectors=GarbageCollectors(images=machine),
        monotonic=lambda: machine.now,
    )
    manager.reader.close()
    manager.reader = manager.meter = manager._cleanup._reader = machine
    manager._notifiers = SimpleNamespace(arm=lambda observations: None)
    manager._layout_known = True
    manager.tracker.thresholds = with_container_filesystem(thresholds_from_config(config), machine.layout)
    for _ in range(2000):
        left = machine.images
        evicted = await manager.synchronize()
        if not manager.tracker.first_met:
            return ("relieved" if manager.tracker.last_seen else "calm"), manager
        if not evicted:
            if manager.tracker.acted_on and machine.images == left:
                return "stuck", manager
            machine.now += LOOK
    raise AssertionError("the manager comes to no end")


def with_readings(cluster: Snapshot, **readings: np.ndarray) -> Snapshot:
    nodes = cluster.nodes
    for name, values in readings.items():
        at = nodes.schema.get_field_index(f"reading/{name}")
        nodes = nodes.set_column(at, f"reading/{name}", pa.array(values.astype(np.int64)))
    return replace(cluster, nodes=nodes)


def laid_out(cluster: Snapshot, layout: str) -> Snapshot:
    """File systems apart, each nearly full in its turn, and a third of what pods write in their layers."""
    pods = cluster.pods
    for name, of in (("layers", "disk"), ("layer_inodes", "inodes")):
        pods = pods.append_column(f"usage/{name}", pa.array(pods[f"usage/{of}"].to_numpy() // 3))
    cluster = replace(cluster, pods=pods)
    if layout == "shared":
        return cluster
    size, number = cluster.reading("nodefs_capacity"), np.arange(cluster.node_count)
    free = {"nodefs": number % 3 == 0, "imagefs": number % 2 == 0}
    free["containerfs"] = free["imagefs" if layout == "imagefs" else "nodefs"]
    sizes = {"nodefs": size, "imagefs": size // 2}
    sizes["containerfs"] = sizes["imagefs" if layout == "imagefs" else "nodefs"]
    readings = {}
    for name, low in free.items():
        readings[f"{name}_capacity"] = sizes[name]
        readings[f"{name}_available"] = np.where(low, sizes[name] // 25, sizes[name] // 3)
        readings[f"{name}_inodes"] = sizes[name] // 4096
        readings[f"{name}_inodes_free"] = np.where(low, 1000, sizes[name] // 9000)
    return with_readings(cluster, **readings)


def machine_of(cluster: Snapshot, node: int, resource: str, layout: str, config: Any) -> Machine:
    pods = pods_of_node(cluster, node)
    rows = cluster.pods.slice(int(cluster.offsets[node]), len(pods)).to_pylist()
    usage = {}
    for pod, row in zip(pods, rows, strict=True):
        layers = Disk(row.get("usage/layers", 0), row.get("usage/layer_inodes", 0))
        rest = Disk(row["usage/disk"] - layers.bytes, row["usage/inodes"] - layers.inodes)
        containers = {"c": ContainerUsage(rootfs=layers)}
        usage[pod.uid] = PodUsage(
            row["usage/memory"], row["usage/processes"], containers, {"v": rest}, disk_known=True
        )

    def reading(name: str) -> int:
        return int(cluster.reading(name)[node])

    readings = {}
    for signal in SIGNALS[resource]:
        fs = "nodefs" if layout == "shared" else signal.partition(".")[0]
        if resource == "disk":
            readings[signal] = reading(f"{fs}_capacity"), reading(f"{fs}_available")
        elif resource == "inodes":
            readings[signal] = reading(f"{fs}_inodes"), reading(f"{fs}_inodes_free")
        elif resource == "processes":
            readings[signal] = reading("pid_max"), reading("pid_max") - reading("pid_used")
        elif signal == "memory.available":
            readings[signal] = reading("memory_capacity"), reading("memory_available")
        else:
            capacity = {"memory": int(cluster.allocatable("memory", "capacity")[node])}
            limit = CgroupSettings.resolve(config, capacity, cgroup_v2=True).root_values().memory
            readings[signal] = limit, max(limit - sum(used.memory for used in usage.values()), 0)
    machine = Machine(layout, pods, usage, readings)
    if resource == "disk":
        old = cluster.meta["taken_at"] - 120
        machine.images = sum(
            image["size"]
            for image in cluster.images.to_pylist()
            if image["node"] == node
            and not image["in_use"] and not image["pinned"] and image["first_detected"] <= old
        )  # fmt: skip
    return machine


HARD_AND_SOFT = {
    "evictionHard": {"memory.available": "5%"},
    "evictionSoft": {"memory.available": "60%"},
    "evictionSoftGracePeriod": {"memory.available": "1m35s"},
    "evictionMinimumReclaim": {"memory.available": "1Gi"},
}
CASES = [
    ("memory", "shared", {"evictionHard": {"memory.available": "50%"}}, {"relieved", "calm"}),
    ("memory", "shared", HARD_AND_SOFT, {"relieved", "calm"}),
    ("memory", "shared", {"evictionHard": {"memory.available": "2Gi"}, "kubeReserved": {"memory": "13Gi"}},
     {"relieved", "calm"}),
    ("processes", "shared", {"evictionHard": {"pid.available": "95%"}}, {"relieved", "calm"}),
    ("disk", "shared", {"evictionHard": {"nodefs.available": "60%"}}, {"relieved", "stuck"}),
    ("disk", "imagefs", {}, {"relieved", "stuck"}),
    ("disk", "split", {}, {"relieved", "stuck"}),
    ("inodes", "imagefs", {}, {"stuck"}),
    ("inodes", "shared", {"evictionSoft": {"nodefs.inodesFree": "80%"},
                          "evictionSoftGracePeriod": {"nodefs.inodesFree": "30s"}}, {"stuck"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "layout", "changes", "verdicts"),
    CASES,
    ids=[f"{c[0]}-{c[1]}-{n}" for n, c in enumerate(CASES)],
)
async def test_the_answer_is_what_the_agents_manager_does(cluster, resource, layout, changes, verdicts):
    config = msgspec.convert(changes, KubeletConfiguration, dec_hook=decode_hook)
    cluster = laid_out(cluster, layout)
    answer = evict(cluster, EvictParameters(resource=resource, changes=changes)).table.to_pylist()
    seen = set()
    for node, name in enumerate(cluster.node_names):
        mine = [row for row in answer if row["node"] == name]
        machine = machine_of(cluster, node, resource, layout, config)
        verdict, manager = await acted(machine, config)
        assert [row["object"] for row in mine if row["decision"] == "evict"] == machine.ended
        (end,) = [row for row in mine if row["decision"] in ("calm", "relieved", "stuck")]
        assert end["decision"] == verdict
        if verdict == "relieved":
            signal = end["reason"].split()[0]
            assert end["amount"] == machine.readings[signal][1]
            period = float(config.eviction_pressure_transition_period)
            cleared = {row["object"]: row["amount"] for row in mine if row["decision"] == "clears"}
            assert cleared == {c: int(at + period) for c, at in manager.tracker.last_seen.items()}
        seen.add(verdict)
    assert verdicts <= seen


def test_a_soft_threshold_waits_for_its_grace_period(cluster):
    answer = evict(cluster, EvictParameters(soft="90%", grace="45s", threshold="1Mi")).table.to_pylist()
    waits = [row for row in answer if row["decision"] == "waits"]
    assert {row["amount"] for row in waits} == {45}
    assert {row["node"] for row in waits} == {row["node"] for row in answer if row["decision"] == "evict"}
    assert all(row["amount"] >= 50 + 300 for row in answer if row["decision"] == "clears")


def test_a_nodes_zero_transition_period_is_zero_and_a_files_is_the_default(cluster):
    """`/configz` shows defaults already applied; in a file, and in changes, zero asks for the default."""
    config = json.dumps({"evictionPressureTransitionPeriod": "0s"})
    table = cluster.nodes.set_column(
        cluster.nodes.schema.get_field_index("config"),
        "config",
        pa.array([config] * len(cluster.nodes), cluster.nodes.schema.field("config").type),
    )
    zero = replace(cluster, nodes=table)

    def clears(snapshot: Snapshot, **fields: Any) -> set[int]:
        rows = evict(snapshot, EvictParameters(available="1Mi", **fields)).table.to_pylist()
        return {row["amount"] for row in rows if row["decision"] == "clears"}

    least = clears(zero)
    assert least
    assert {amount + 300 for amount in least} == clears(cluster)
    assert {amount + 300 for amount in least} == clears(
        zero, changes={"evictionPressureTransitionPeriod": "0s"}
    )
    assert clears(zero, threshold="100Mi") == least


def test_usage_of_a_signal_applies_to_its_file_system(cluster):
    apart = laid_out(cluster, "imagefs")
    asked = EvictParameters(resource="disk", signal="imagefs.available", available="1Gi", reclaim=False)
    rows = evict(apart, asked).table.to_pylist()
    reasons = {row["reason"] for row in rows if row["decision"] in ("relieved", "stuck")}
    assert any(reason.startswith("imagefs.available") for reason in reasons)
    assert not [row for row in rows if row["decision"] == "calm"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"signal": "imagefs.available"}, "expected one of memory.available"),
        ({"resource": "disk", "signal": "containerfs.available", "soft": "5%"}, "follows the file system"),
        ({"soft": "5%", "grace": "soon"}, "invalid duration"),
    ],
)
def test_a_nonsensical_signal_is_reported(cluster, asked, words):
    with pytest.raises(InvalidInput, match=words):
        evict(cluster, msgspec.convert(asked, EvictParameters))


def test_at_most_the_requested_number_of_pods_is_evicted(cluster):
    def evictions(most: int) -> list[list[str]]:
        asked = EvictParameters(threshold="90%", max_evictions=most)
        rows = evict(cluster, asked).table.to_pylist()
        gone = [(row["node"], row["object"]) for row in rows if row["decision"] == "evict"]
        return [[pod for of, pod in gone if of == node] for node in cluster.node_names]

    all_of_them = evictions(1000)
    assert max(map(len, all_of_them)) > 3
    assert evictions(3) == [pods[:3] for pods in all_of_them]


@pytest.mark.parametrize("asked", [{"growth": "100E"}, {"available": "-9E"}, {"growth": "900000%"}])
def test_overflowing_amounts_are_reported(cluster, asked):
    held = np.full(cluster.pods.num_rows, 2**58)
    at = cluster.pods.schema.get_field_index("usage/memory")
    full = replace(cluster, pods=cluster.pods.set_column(at, "usage/memory", pa.array(held)))
    with pytest.raises(InvalidInput, match=next(iter(asked))):
        evict(full, EvictParameters(**asked))


def test_a_node_with_uncountable_usage_is_named(cluster):
    held = np.full(cluster.pods.num_rows, 2**62)
    at = cluster.pods.schema.get_field_index("usage/memory")
    full = replace(cluster, pods=cluster.pods.set_column(at, "usage/memory", pa.array(held)))
    with pytest.raises(InvalidInput, match=cluster.node_names[0]):
        evict(full, EvictParameters(threshold="90%"))


def test_a_threshold_beyond_64_bits_is_never_covered(cluster):
    rows = evict(cluster, EvictParameters(threshold="16Ei")).table.to_pylist()
    missing = {row["node"]: row["amount"] for row in rows if row["decision"] == "stuck"}
    assert missing.keys() == set(cluster.node_names)
    assert all(2**62 < amount < 2**63 for amount in missing.values())
