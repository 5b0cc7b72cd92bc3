"""Plans over whole clusters: reading, loading, one critical pod everywhere, a sweep, memory.

`pytest bench/bench_plan.py`. Goals on two cores, 10,000 nodes × 100 pods: JSON at 150 MB/s, columnar load
under 1 s, one critical pod on every node under 1 s, 1,000 pods × 1,000 nodes under 20 s, under 1 GiB for a
million pods. The kubelet (v1.32, Go) chooses victims among 100 pods in 281 µs: 2.8 s for 10,000 nodes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from engine._fast.messages import _json_split_c, _json_split_py
from engine._fast.placement import _spread_scores_c, _spread_scores_py
from engine._fast.preemption import _preemption_c, _preemption_py
from engine.api import cpu_set
from engine.cpumanager.topology import Processor
from engine.memorymanager.state import NodeMemory, unused
from engine.plan import Snapshot, SnapshotFile, load_snapshot, synthesize, write_snapshot
from engine.plan.cluster import Cluster, ask
from engine.plan.placement.fit import fit, node_use
from engine.plan.questions.cgroups import CgroupsParameters, cgroups
from engine.plan.questions.cpus import CpusParameters, cpus
from engine.plan.questions.evict import EvictParameters, evict
from engine.plan.questions.headroom import HeadroomParameters
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.plan.reading.requested_pods import requested_pods
from engine.plan.snapshot.json_writer import write_list
from engine.plan.snapshot.lazy_table import whole
from engine.plan.snapshot.node_cpus import PINNING, PROCESSORS, PinnedState, pinning_text, processors_text

CRITICAL = PreemptParameters(critical=True, requests={"cpu": "2", "memory": "4Gi"})
PER_NODE_KUBELET = 281e-6


@pytest.fixture(scope="module")
def million(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "million.kes"
    write_snapshot(synthesize(10_000, 100, 1), path)
    return path


@pytest.fixture(scope="module")
def loaded(million) -> Snapshot:
    return SnapshotFile(million).load()


@pytest.fixture(scope="module")
def small_nodes(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "small-nodes.kes"
    write_snapshot(synthesize(130_000, 30, 1), path)
    return path


@pytest.fixture(scope="module")
def listed(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "cluster.json"
    with path.open("wb") as file:
        write_list(synthesize(200, 100, 1), file)
    return path


def test_read_json(benchmark, listed, capsys):
    """20,000 pods as kubectl prints them, to columns."""
    benchmark.group = "kubectl JSON to a snapshot"
    snapshot = benchmark.pedantic(load_snapshot, args=([str(listed)],), rounds=3, warmup_rounds=1)
    size = listed.stat().st_size
    with capsys.disabled():
        rate = size / benchmark.stats["min"] / 1e6
        print(f"\n{size / 1e6:.0f} MB at {rate:.0f} MB/s, {snapshot.placed:,} pods")


def test_read_json_plainly(benchmark, listed):
    benchmark.group = "kubectl JSON to a snapshot"
    benchmark.pedantic(lambda: json.loads(listed.read_bytes()), rounds=2)


@pytest.mark.parametrize("split", [_json_split_c, _json_split_py], ids=["kernel", "twin"])
def test_split(benchmark, listed, split):
    benchmark.group = "boundaries of 1 MB of JSON objects"
    data = listed.read_bytes()[: 1 << 20]
    bounds = np.empty((65536, 2), np.int64)
    at = split.open_document(data, 0, 128)[2]
    benchmark.pedantic(split.split_items, args=(data, at, bounds, 128), rounds=3)


def test_load_columnar(benchmark, million):
    benchmark.group = "a million pods from a columnar file"
    snapshot = benchmark.pedantic(lambda: SnapshotFile(million).load(), rounds=3, warmup_rounds=1)
    assert snapshot.placed > 990_000


def test_one_critical_pod_everywhere(benchmark, loaded, capsys):
    """From a loaded snapshot to the answer's rows, victims named."""
    benchmark.group = "one critical pod on 10,000 nodes × 100 pods (kubelet, victims only: 2.8 s)"
    loaded.tables  # noqa: B018 - columns are made once a snapshot
    benchmark.pedantic(preempt, args=(loaded, CRITICAL), rounds=5, warmup_rounds=1)
    with capsys.disabled():
        ratio = 10_000 * PER_NODE_KUBELET / benchmark.stats["min"]
        print(f"\n{benchmark.stats['min'] * 100:.1f} µs a node, {ratio:.0f} × the kubelet's victims alone")


@pytest.mark.parametrize("form", [_preemption_c, _preemption_py], ids=["kernel", "twin"])
def test_victims(benchmark, loaded, form, capsys):
    """The victims alone where every node has to preempt; the twin on a hundredth of the nodes."""
    benchmark.group = "victims on nodes of 100 pods"
    nodes = 10_000 if form is _preemption_c else 100
    cluster = loaded if nodes == loaded.node_count else loaded.shard(0, nodes)
    parameters = PreemptParameters(critical=True, requests={"cpu": "2", "memory": "4Gi"})
    (pod,) = requested_pods(cluster, parameters)
    use = node_use(cluster)
    checked = fit(use, pod)
    columns = use.tables.columns
    ids = np.ascontiguousarray(checked.ids[:3])
    needs = np.ascontiguousarray(np.tile(np.array([[0, 1000, 2 << 30]], np.int64), (nodes, 1)))
    arguments = (
        columns.ranking, columns.qos, columns.flags, columns.priority, use.tables.offsets, True,
        pod.spec.priority, ids, needs,
    )  # fmt: skip
    benchmark.pedantic(form.victims_by_node, args=arguments, rounds=3 if nodes > 100 else 1)
    with capsys.disabled():
        per_node = benchmark.stats["min"] / nodes
        print(f"\n{per_node * 1e6:.1f} µs a node, {PER_NODE_KUBELET / per_node:.1f} × the kubelet")


def test_sweep(benchmark, loaded):
    """1,000 pods, each on 1,000 nodes of 100 pods: a hundred million row visits."""
    benchmark.group = "1,000 pods × 1,000 nodes × 100 pods"
    cluster = loaded.shard(0, 1_000)
    sizes = [
        PreemptParameters(
            critical=True, victims=False, requests={"cpu": f"{100 + 4 * i}m", "memory": f"{i + 64}Mi"}
        )
        for i in range(1_000)
    ]
    benchmark.pedantic(lambda: [preempt(cluster, size) for size in sizes], rounds=1)


def test_evict_most_pods(benchmark, loaded):
    """The whole course of eviction on 10,000 nodes, pod by pod; goal: under 2 s."""
    benchmark.group = "eviction of 8 in 10 of a million pods"
    loaded.tables  # noqa: B018 - columns are made once a snapshot
    parameters = EvictParameters(threshold="90%", use="80%")
    answer = benchmark.pedantic(evict, args=(loaded, parameters), rounds=3)
    assert len(answer) > 700_000


def test_load_130_000_small_nodes(benchmark, small_nodes):
    """Load until questions can be asked; each question reads its columns. Goal: under 1 s."""
    benchmark.group = "130,000 nodes × 30 pods"
    benchmark.pedantic(lambda: SnapshotFile(small_nodes).load(), rounds=3)


def test_ask_130_000_small_nodes(benchmark, small_nodes):
    """The first question after loading: what it reads, columns and sums included; goal: under 1 s."""
    benchmark.group = "130,000 nodes × 30 pods"

    def loaded() -> tuple[tuple[Cluster, str, PreemptParameters], dict[str, object]]:
        return (Cluster(SnapshotFile(small_nodes).load()), "preempt", CRITICAL), {}

    benchmark.pedantic(ask, setup=loaded, rounds=3)


def test_ask_130_000_small_nodes_again(benchmark, small_nodes):
    """Each further question of its kind."""
    benchmark.group = "130,000 nodes × 30 pods"
    cluster = Cluster(SnapshotFile(small_nodes).load())
    benchmark.pedantic(ask, args=(cluster, "preempt", CRITICAL), rounds=3, warmup_rounds=1)


def test_headroom_on_130_000_small_nodes(benchmark, small_nodes):
    """A thousand copies of a pod, each placed by the scheduler's rules; goal: under 1 s."""
    benchmark.group = "130,000 nodes × 30 pods"
    loaded = SnapshotFile(small_nodes).load()
    parameters = HeadroomParameters(like=[loaded.pod_label(loaded.placed - 1)], most=1000)
    benchmark.pedantic(ask, args=(Cluster(loaded), "headroom", parameters), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("form", [_spread_scores_c, _spread_scores_py], ids=["kernel", "twin"])
def test_spread_scores(benchmark, form):
    """The best of 130,000 nodes for one pod, in three zones."""
    benchmark.group = "the best of 130,000 nodes"
    cell = (np.arange(130_000) % 3).astype(np.int32)
    total, nodes = (cell * 7 % 100).astype(np.int16), np.ones(len(cell), np.uint8)
    benchmark(form.best_nodes, total, nodes, cell, np.array([100, 50, 80], np.int16))


def test_memory(benchmark, million, capsys):
    """A process that loads a million pods and asks one question."""
    benchmark.group = "peak memory with a million pods"
    script = (
        "import re; from engine.plan.cluster import Cluster, ask; "
        "from engine.plan.questions.preempt import PreemptParameters as P; "
        f"a = ask(Cluster.open([{str(million)!r}]), 'preempt', P(critical=True, requests={{'cpu': '2'}})); "
        "print(int(re.search('VmHWM:[^0-9]*([0-9]+)', open('/proc/self/status').read())[1]) // 1024)"
    )

    def run() -> int:
        return int(
            subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
        )

    peak = benchmark.pedantic(run, rounds=1)
    with capsys.disabled():
        print(f"\npeak {peak} MiB")


def test_every_cgroup_value(benchmark):
    """Levels, pods, containers and lint of 1,000 nodes × 100 pods."""
    benchmark.group = "every cgroup value of 100,000 pods"
    parameters = CgroupsParameters(detail=["qos", "pods", "containers", "lint"])
    answer = benchmark.pedantic(
        cgroups, args=(synthesize(1000, 100, 1), parameters), rounds=5, warmup_rounds=1
    )
    assert len(answer) > 1_000_000


@pytest.mark.parametrize("policy", ["best-effort", "single-numa-node"])
def test_pinned_pods_on_every_node(benchmark, policy):
    """Ten pods with exclusive CPUs on 10,000 half-full nodes of two or eight NUMA nodes; goal: under 5 s."""
    benchmark.group = "10 pods of 4 exclusive CPUs and 8 GiB on 10,000 nodes"
    cluster = half_full(synthesize(10_000, 20, images=False))
    parameters = CpusParameters(requests={"cpu": "4", "memory": "8Gi"}, pods=10, policy=policy)
    answer = benchmark.pedantic(cpus, args=(cluster, parameters), rounds=3)
    assert len(answer) > 20_000


def half_full(cluster: Snapshot) -> Snapshot:
    """Describe the CPUs and memory of each node, of which containers hold four tenths, scattered."""
    draw = random.Random(1)
    processors, pinned = [], []
    amounts = (cluster.allocatable("cpu", "capacity") // 1000, cluster.allocatable("memory", "capacity"))
    for count, memory in zip(*(each.tolist() for each in amounts), strict=True):
        cores, nodes = count // 2, 8 if count >= 96 else 2
        places = [(cpu % cores, cpu % cores * nodes // cores) for cpu in range(count)]
        found = [Processor(cpu, core, node, node // 4, node) for cpu, (core, node) in enumerate(places)]
        processors.append(processors_text(found))
        state = unused([NodeMemory(node, memory // nodes) for node in range(nodes)], {})
        for one in state.values():
            table = one.memory_map["memory"]
            table.reserved = int(table.allocatable * draw.random() * 0.7)
            table.free = table.allocatable - table.reserved
            one.number_of_assignments = 1
        held = cpu_set.cpu_set(cpu for cpu in range(2, count) if draw.random() < 0.4)
        pinned.append(pinning_text(PinnedState("0-1", cpu_set.text(held), state)))
    columns = {PROCESSORS: processors, PINNING: pinned}
    table = whole(cluster.nodes)
    for name, texts in columns.items():
        table = table.append_column(name, pa.array(texts, pa.large_string()))
    return replace(cluster, nodes=table)
