"""Cgroup costs: values of many pods at once, a level's update after one pod, and writes.

`pytest bench/bench_cgroups.py`. The kubelet's own figures on this kind of machine: 4.05 µs a pod for
pod values (two containers), 24.8 ms for a QoS update at 10,000 pods.
"""

from __future__ import annotations

import os
import random
import uuid

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cgroups.formulas.bulk import BulkCgroups, ContainerColumns
from engine.cgroups.formulas.containers import ContainerRules
from engine.cgroups.formulas.levels import Contribution, LevelRules, LevelSums
from engine.cgroups.formulas.values import PodRules, pod_values
from engine.cgroups.manager import CgroupManager
from engine.tables.pods import PodTable

GI = 1 << 30
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups")


def make_pods(count: int, seed: int = 1) -> list[Pod]:
    rng = random.Random(seed)
    pods = []
    for number in range(count):
        containers = []
        kind = rng.choice(("guaranteed", "burstable", "burstable", "besteffort"))
        for name in ("a", "b"):
            amounts = {"cpu": f"{rng.randrange(10, 4000)}m", "memory": f"{rng.randrange(16, 4096)}Mi"}
            resources = {"besteffort": {}, "burstable": {"requests": amounts}}.get(
                kind, {"requests": amounts, "limits": amounts}
            )
            containers.append({"name": name, "resources": resources})
        metadata = {"name": f"p{number}", "uid": f"u{number}"}
        document = {"metadata": metadata, "spec": {"containers": containers}}
        pods.append(msgspec.convert(document, Pod, dec_hook=decode_hook))
    return pods


@pytest.mark.parametrize("memory_qos", [False, True], ids=["plain", "memory-qos"])
def test_all_values_of_10000_pods(benchmark, memory_qos):
    pods = make_pods(10_000)
    table, containers = PodTable.from_pods(pods), ContainerColumns.of(pods)
    bulk = BulkCgroups(
        PodRules(memory_qos=memory_qos),
        ContainerRules(64 * GI, 60 * GI, memory_qos=memory_qos, cgroup_v2=True),
        LevelRules(60 * GI, 100, memory_qos),
        "logarithmic",
    )
    benchmark(bulk.values, table.columns, len(pods), containers, [64 * GI], [60 * GI])


def test_values_of_1000_pods_agent(benchmark):
    """Pod by pod, as the agent asks when each comes."""
    pods, rules = make_pods(1000), PodRules()
    benchmark(lambda: [pod_values(pod, rules) for pod in pods])


@pytest.mark.parametrize("count", [110, 10_000])
def test_level_sums_after_one_pod(benchmark, count):
    sums, rules = LevelSums(), LevelRules(64 * GI, 100)
    for pod in make_pods(count):
        sums.put(pod.uid, Contribution.of(pod))
    one = Contribution.of(make_pods(1, seed=2)[0])

    def change() -> None:
        sums.put("new", one)
        sums.values(rules)
        sums.drop("new")
        sums.values(rules)

    benchmark(change)


@pytest.fixture
def manager():
    root = f"/kubengine-bench-{uuid.uuid4().hex[:8]}"
    manager = CgroupManager(
        config=KubeletConfiguration(cgroup_root=root, eviction_hard={}),
        section=CgroupsSection(reconcile_sample=32),
        capacity={"cpu": 64_000, "memory": 256 * GI, "pid": 30_000},
    )
    manager.start()
    yield manager
    manager.remove_all()
    manager.stop()


def add_up(manager: CgroupManager, pods: list[Pod]) -> None:
    """Have these pods count for their levels without groups of their own."""
    for pod in pods:
        manager.levels.sums.put(pod.uid, Contribution.of(pod))
    manager.levels.write()


@needs_root
@pytest.mark.parametrize("count", [110, 10_000])
def test_level_update_after_one_pod_without_a_write(benchmark, manager, count):
    """Two Best-Effort changes: the whole update but for the writes."""
    pods = make_pods(count)
    add_up(manager, pods)
    one = Contribution("BestEffort")

    def change() -> None:
        manager.levels.sums.put("new", one)
        manager.levels.write()
        manager.levels.sums.drop("new")
        manager.levels.write()

    benchmark(change)


@needs_root
def test_level_update_after_one_pod_with_its_write(benchmark, manager):
    add_up(manager, make_pods(60))  # more would reach the largest share, which no longer changes
    contributions = [Contribution("Burstable", 100, 0), Contribution("Burstable", 200, 0)]

    def change() -> None:
        for contribution in contributions:
            manager.levels.sums.put("new", contribution)
            manager.levels.write()

    before = manager.tree.writes
    change()
    assert manager.tree.writes == before + 2
    benchmark(change)


@needs_root
def test_reconcile_of_1000_unchanged_pods(benchmark, manager):
    for pod in make_pods(1000):
        manager.create_pod(pod)
    benchmark(manager.reconcile)


@needs_root
def test_create_and_remove_a_pod(benchmark, manager):
    (pod,) = make_pods(1)

    def both() -> None:
        manager.create_pod(pod)
        manager.remove_pod(pod.uid)

    benchmark(both)


@needs_root
def test_one_write(benchmark, manager):
    tree, name = manager.tree, (*manager.settings.root, "burstable")
    share = "cpu.shares" if manager.mounts.version == 1 else "cpu.weight"

    def write() -> None:
        tree.write_files(name, {share: "100"})
        tree.write_files(name, {share: "200"})

    benchmark(write)
