"""Eviction: what an observation costs, and what ranking costs when there is pressure.

`pytest bench/bench_eviction.py`. The kubelet's ranking by memory (v1.32, Go, same kind of machine) is
0.47 / 10 / 201 ms for 110 / 1,000 / 10,000 pods.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine._fast.ranking import _eviction_ranking_c, _eviction_ranking_py
from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec, ResourceRequirements
from engine.api.quantity import Quantity
from engine.eviction.pressure import PressureTracker
from engine.eviction.readings import NodeView, SignalReader
from engine.eviction.signals import MEMORY
from engine.eviction.thresholds import thresholds_from_config
from engine.eviction.usage import PodUsage, rank
from engine.tables import PodTable
from engine.tables import eviction as ranking

RANKING = {110: "0.47 ms", 1_000: "10 ms", 10_000: "201 ms"}
KERNELS = {"kernel": _eviction_ranking_c, "twin": _eviction_ranking_py}


@pytest.fixture
def reader():
    reader = SignalReader(NodeView(pods_cgroup="/"), nodefs=Path("/"))
    reader.imagefs = reader.containerfs = Path("/")
    yield reader
    reader.close()


def test_read_all_signals(benchmark, reader):
    """Memory, allocatable memory, process ids, three file systems (goal: below 1 ms)."""
    benchmark.group = "one look"
    assert "memory.available" in benchmark(reader.read, 1.0)


def test_look(benchmark, reader):
    """The same with the decision: thresholds, grace periods, conditions."""
    benchmark.group = "one look"
    tracker = PressureTracker(thresholds_from_config(KubeletConfiguration()), 300)
    now = [0.0]

    def look() -> None:
        now[0] += 10
        tracker.update(reader.read(now[0]), now[0])

    benchmark(look)


def pod_of(number: int, mebibytes: int) -> Pod:
    requests = {"memory": Quantity.from_value(mebibytes << 20)}
    container = Container(name="c", resources=ResourceRequirements(requests=requests))
    return Pod(
        metadata=ObjectMeta(name=f"p{number}", uid=f"uid{number}"),
        spec=PodSpec(priority=number % 5 * 100, containers=[container]),
    )


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("count", RANKING)
def test_rank_by_memory(benchmark, monkeypatch, count, which):
    """From a filled table and the usage columns to the order."""
    benchmark.group = f"rank {count} pods by memory (kubelet: {RANKING[count]})"
    monkeypatch.setattr(ranking, "order_by_excess", KERNELS[which].order_by_excess)
    random = np.random.default_rng(1)
    requests = random.integers(0, 1 << 10, count)
    table = PodTable.from_pods(pod_of(n, int(requests[n])) for n in range(count))
    rows = np.array([table.row(f"uid{n}") for n in range(count)], np.int32)
    usage = random.integers(0, 1 << 30, count)
    known = (random.random(count) > 0.01).astype(np.uint8)
    order = benchmark(ranking.eviction_order, table.columns, rows, "memory", usage, known)
    assert len(order) == count


@pytest.mark.parametrize("count", RANKING)
def test_rank_by_memory_agent(benchmark, count):
    """The same as the manager asks it: pods, what was measured of each, admission's rows."""
    benchmark.group = f"rank {count} pods by memory (kubelet: {RANKING[count]})"
    random = np.random.default_rng(1)
    pods = [pod_of(n, int(request)) for n, request in enumerate(random.integers(0, 1 << 10, count))]
    usage = {
        pod.uid: PodUsage(memory=int(amount))
        for pod, amount in zip(pods, random.integers(0, 1 << 30, count), strict=True)
    }
    table = PodTable.from_pods(pods)
    assert benchmark(lambda: next(iter(rank(table, pods, usage, MEMORY))))
