"""Tables: rows from Pod objects, changes of one row, sums and eviction order of many.

`pytest bench/bench_tables.py`. The kubelet (v1.32, Go) takes 1.52 µs per pod for QoS class and sums.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine._fast.preemption import _predicates_c, _predicates_py
from engine._fast.ranking import _eviction_ranking_c, _eviction_ranking_py
from engine.api.documents import convert
from engine.api.pod import Pod
from engine.tables import PodTable, pod_entry


def make_pod(number: int) -> Pod:
    amounts = {"cpu": f"{number % 1900 + 10}m", "memory": f"{number % 3000 + 10}Mi"}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": {"memory": "4Gi"}}}
    metadata = {"name": f"p{number}", "uid": f"u{number}"}
    return convert({"metadata": metadata, "spec": {"containers": [container]}}, Pod, "pod")


@pytest.fixture(scope="module")
def pods() -> list[Pod]:
    return [make_pod(number) for number in range(10_000)]


@pytest.mark.parametrize("count", [110, 1_000, 10_000])
def test_table_from_pods(benchmark, pods, count):
    """Sums, class, flags and row of each pod."""
    benchmark.group = (
        f"{count} pods into a table (kubelet, sums and class only: {1.52 * count / 1000:.2f} ms)"
    )
    assert len(benchmark(PodTable.from_pods, pods[:count])) == count


def test_plain_entries(benchmark, pods):
    """The same sums by the plain rule."""
    benchmark.group = "1000 pods into a table (kubelet, sums and class only: 1.52 ms)"
    benchmark(lambda: [pod_entry(pod) for pod in pods[:1_000]])


def test_one_pod_comes_and_goes(benchmark, pods):
    benchmark.group = "one row of a table of 10,000"
    table = PodTable.from_pods(pods[1:])

    def change() -> None:
        table.add(pods[0])
        table.remove(pods[0].uid)

    benchmark(change)


KERNELS = {"kernel": (_predicates_c, _eviction_ranking_c), "twin": (_predicates_py, _eviction_ranking_py)}


@pytest.mark.parametrize("which", KERNELS)
def test_request_sums(benchmark, bandwidth, capsys, which):
    """A million pods on 10,000 nodes, three resources."""
    benchmark.group = "sums of a million pods' requests"
    columns = np.random.default_rng(1).integers(0, 2**30, (3, 1_000_000))
    offsets = np.arange(0, 1_000_001, 100)
    benchmark.pedantic(KERNELS[which][0].request_sums, (columns, offsets), rounds=3)
    if which == "kernel" and benchmark.stats is not None:
        rate = columns.nbytes / benchmark.stats.stats.min / 1e9
        with capsys.disabled():
            print(
                f"\n  read {columns.nbytes / 1e6:.0f} MB at {rate:.1f} GB/s of {bandwidth:.1f} GB/s per core"
            )


@pytest.mark.parametrize("which", KERNELS)
def test_eviction_order(benchmark, which):
    benchmark.group = "eviction order of 10,000 pods by memory (kubelet: 201 ms)"
    rng = np.random.default_rng(1)
    usage, request = rng.integers(0, 2**34, 10_000), rng.integers(0, 2**34, 10_000)
    priority = rng.choice(np.array([0, 0, 1000, 2_000_000_000], np.int32), 10_000)
    known = np.ones(10_000, np.uint8)
    benchmark(KERNELS[which][1].order_by_excess, usage, known, request, None, priority)
