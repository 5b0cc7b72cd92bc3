"""Eviction: what a look costs, and what ranking costs when there is pressure.

`pytest bench/bench_eviction.py`. The kubelet's ranking by memory (v1.32, Go, same kind of machine) is
0.47 / 10 / 201 ms for 110 / 1,000 / 10,000 pods.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine._fast import _eviction_ranking_c, _eviction_ranking_py
from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec, ResourceRequirements
from engine.api.quantity import Quantity
from engine.eviction.pressure import PressureTracker
from engine.eviction.readings import NodeView, SignalReader
from engine.eviction.thresholds import thresholds_from_config
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
        tracker.look(reader.read(now[0]), now[0])

    benchmark(look)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("count", RANKING)
def test_rank_by_memory(benchmark, monkeypatch, count, which):
    """From a filled table and the usage columns to the order."""
    benchmark.group = f"rank {count} pods by memory (kubelet: {RANKING[count]})"
    monkeypatch.setattr(ranking, "order_by_excess", KERNELS[which].order_by_excess)
    random = np.random.default_rng(1)
    requests = random.integers(0, 1 << 10, count)
    table = PodTable.from_pods(
        Pod(
            metadata=ObjectMeta(name=f"p{n}", uid=f"uid{n}"),
            spec=PodSpec(
                priority=int(n % 5) * 100,
                containers=[
                    Container(
                        name="c",
                        resources=ResourceRequirements(
                            requests={"memory": Quantity.from_value(int(requests[n]) << 20)}
                        ),
                    )
                ],
            ),
        )
        for n in range(count)
    )
    rows = np.array([table.row(f"uid{n}") for n in range(count)], np.int32)
    usage = random.integers(0, 1 << 30, count)
    known = (random.random(count) > 0.01).astype(np.uint8)
    order = benchmark(ranking.eviction_order, table.columns, rows, "memory", usage, known)
    assert len(order) == count
