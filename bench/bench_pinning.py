"""What choosing CPUs and NUMA nodes costs: `pytest bench/bench_pinning.py`.

One decision is everything about one container: hints of CPUs and memory, their merge, and both choices.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from pathlib import Path

import pytest

from engine.api.decisions import Decisions
from engine.api.documents import convert
from engine.api.kubengine_config import CpusSection
from engine.api.pod import Pod
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.recent_use import RecentCpuUse
from engine.cpumanager.shared_cpus import SharedCpus, SharingPod
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy, take_by_topology
from engine.cpumanager.system_processes import SystemProcesses
from engine.cpumanager.topology import CpuTopology, Processor
from engine.host.cgroupfs.mounts import find_mounts
from engine.memorymanager.state import MemoryState, NodeMemory, unused
from engine.memorymanager.static_policy import StaticMemoryPolicy
from engine.metrics import Registry
from engine.topologymanager.policy import Numa, TopologyPolicy


def machine(cpus: int, nodes: int) -> CpuTopology:
    """Return a topology with two threads a core, eight cores a cache, and four nodes a socket."""
    cores = cpus // 2
    return CpuTopology(
        [
            Processor(
                cpu,
                cpu % cores,
                cpu % cores // 8,
                cpu % cores // (cores // nodes) // 4,
                cpu % cores // (cores // nodes),
            )
            for cpu in range(cpus)
        ]
    )


def pod_of(cpus: int) -> Pod:
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    meta = {"name": "p", "namespace": "d", "uid": "u"}
    return convert({"metadata": meta, "spec": {"containers": [container]}}, Pod, "pod")


@pytest.mark.parametrize(
    ("cpus", "cpu_nodes", "nodes", "wanted", "options"),
    [
        (512, 16, 16, 8, {}),
        (512, 16, 16, 333, {}),
        (512, 16, 16, 333, {"distribute-cpus-across-numa": "true"}),
        (512, 8, 8, 8, {}),
        (512, 4, 4, 8, {}),
        (144, 2, 34, 8, {}),
    ],
    ids=["512-cpus-16-nodes", "most-of-them", "distributed", "8-nodes", "4-nodes", "34-nodes"],
)
def test_one_decision(benchmark, cpus, cpu_nodes, nodes, wanted, options):
    topology = machine(cpus, cpu_nodes)
    numa = Numa(tuple(range(nodes)))
    policy = TopologyPolicy("best-effort", "container", numa)
    chosen = StaticOptions.parse(options, alpha=True, beta=True)
    memory = unused([NodeMemory(i, 2**36 if i < cpu_nodes else 0) for i in range(nodes)], {})
    cpu_policy = StaticCpuPolicy(topology, 1, chosen, numa, CpuState(topology.cpus))
    memory_policy = StaticMemoryPolicy(numa, MemoryState(memory))
    pod = pod_of(wanted)
    (container,) = pod.spec.containers

    def decide():
        cpu_policy.release("u")
        memory_policy.release("u")
        hints = [cpu_policy.container_hints(pod, container), memory_policy.container_hints(pod, container)]
        hint = policy.decide(hints).hint
        cpu_policy.allocate(pod, container, hint)
        memory_policy.allocate(pod, container, hint)

    benchmark(decide)
    assert cpu_policy.state.held("u", "c").bit_count() == wanted


@pytest.mark.parametrize("wanted", [1, 8, 100, 333])
def test_choosing_cpus(benchmark, wanted):
    topology, options = machine(512, 16), StaticOptions()
    found = benchmark(take_by_topology, topology, options, topology.cpus & ~0xFF, wanted)
    assert found.bit_count() == wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"pools": [{"name": f"p{i}", "namespaces": [f"n{i}"]} for i in range(4)]},
        {"keepTogether": "cache"},
        {"keepTogether": "node", "respectIsolated": True},
    ],
    ids=["pools", "cache", "node"],
)
def test_division_of_shared_cpus(benchmark, fields):
    """100 Burstable pods on 512 CPUs, of which one comes and goes."""
    topology = machine(512, 16)
    policy = StaticCpuPolicy(topology, 1, StaticOptions(), Numa(tuple(range(16))), CpuState(topology.cpus))
    shares = SharedCpus(convert(fields, CpusSection, "cpus"), 0xF0)
    pods = [SharingPod(f"u{i:03}", f"n{i % 8}", {}, 500 + 100 * (i % 30)) for i in range(101)]
    lists = itertools.cycle([pods, pods[:-1]])
    benchmark(lambda: shares.divide(policy, next(lists), RecentCpuUse()))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups")
def test_write_of_a_system_cpuset(benchmark):
    hierarchy = find_mounts().holding("cpuset")
    root = Path(hierarchy.path)
    group = root / f"bench-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        registry, decisions = Registry(), Decisions(time.time)
        system = SystemProcesses([group.name], root, decisions=decisions, registry=registry)
        sets = itertools.cycle([1, 3])
        benchmark(lambda: system.allow(next(sets)))
    finally:
        group.rmdir()
