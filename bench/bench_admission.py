"""Admission and preemption beside the plain twins and the kubelet.

`pytest bench/bench_admission.py`. The kubelet (v1.32, Go, same kind of machine) takes 281 µs, 3.24 ms,
10.2 ms, 58.4 ms and 1.62 s for the preemptions below, and 0.47 / 4.2 / 21.4 ms to admit one pod beside
110 / 1,000 / 5,000. Three kinds of pods: `ordinary` are short of cpu and memory with log-normal requests, as
in real clusters; `uniform` are short of three unrelated resources, where bounds help least; `equal` all ask
for the same.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine._fast.preemption import _preemption_c, _preemption_py
from engine.admission import NodeAllocations, decide, preempt
from engine.admission.everywhere import Victims, shortages_everywhere, used_on_each_node, victims_everywhere
from engine.admission.manager import Admission
from engine.api.documents import convert
from engine.api.events import EventRecorder
from engine.api.node import Node
from engine.api.pod import Pod
from engine.metrics import Registry
from engine.tables import ClusterTables, PodTable

PREEMPTIONS = {
    (100, 10): "281 µs",
    (1_000, 10): "3.24 ms",
    (1_000, 100): "10.2 ms",
    (10_000, 10): "58.4 ms",
    (10_000, 1_000): "1.62 s",
}
ENTRY_BYTES = {"ordinary": 2 * 8, "uniform": 3 * 8, "equal": 2 * 8}


def requests(kind: str, pods: int) -> np.ndarray:
    """Return int64[3, pods]: milli-CPU, bytes of memory, bytes of ephemeral storage."""
    rng = np.random.default_rng(7)
    if kind == "uniform":
        columns = [
            rng.integers(10, 2000, pods),
            rng.integers(2**20, 2**32, pods),
            rng.integers(0, 2**30, pods),
        ]
        return np.stack(columns)
    if kind == "equal":
        return np.repeat(np.array([[250], [2**28], [0]], np.int64), pods, axis=1)
    cpu = rng.lognormal(5, 1, pods).astype(np.int64) + 1
    memory = (rng.lognormal(5, 1.5, pods) * 2**20).astype(np.int64) + 1
    return np.stack([cpu, memory, np.zeros(pods, np.int64)])


def situation(kind: str, pods: int, victims: int) -> tuple:
    """Kernel arguments whose answer has about so many victims."""
    ranking = requests(kind, pods)
    ids = np.array([0, 1, 2] if kind == "uniform" else [0, 1], np.int32)
    needs = np.array([int(np.sort(ranking[id])[-victims:].sum() * 0.8) for id in ids], np.int64)
    flags, zeros = np.full(pods, 5, np.uint8), np.zeros(pods, np.int32)
    return ranking, np.ones(pods, np.uint8), flags, zeros, None, True, None, ids, needs


@pytest.mark.parametrize("which", ["kernel", "twin"])
@pytest.mark.parametrize("kind", list(ENTRY_BYTES))
@pytest.mark.parametrize(("pods", "victims"), PREEMPTIONS)
def test_victims(benchmark, bandwidth, capsys, pods, victims, kind, which):
    """From filled tables to victims."""
    if which == "twin" and pods * victims > 100_000:
        pytest.skip("the twin takes minutes")
    kubelet = PREEMPTIONS[pods, victims]
    benchmark.group = f"preempt {victims} of {pods} pods (kubelet: {kubelet})"
    arguments = situation(kind, pods, victims)
    if which == "twin":
        benchmark.pedantic(_preemption_py.victims, arguments, rounds=2)
        return
    chosen, _ = benchmark(_preemption_c.victims, *arguments)
    work = np.zeros(1, np.int64)
    _preemption_c.victims(*arguments, work=work)
    touched = int(work[0]) * ENTRY_BYTES[kind]
    if benchmark.stats is None:
        return
    rate = touched / benchmark.stats.stats.min / 1e9
    with capsys.disabled():
        print(
            f"\n  {kind}, {len(chosen)} victims: looked at {touched / 1e6:.2f} MB "
            f"({int(work[0]) / (len(chosen) * pods):.1%} of a scan per victim), {rate:.1f} GB/s "
            f"of {bandwidth:.1f} GB/s"
        )


def make_pod(number: int, columns: np.ndarray, **spec) -> Pod:
    amounts = {"cpu": f"{columns[0, number]}m", "memory": str(columns[1, number])}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts}}
    metadata = {"name": f"p{number}", "uid": f"u{number}"}
    return convert({"metadata": metadata, "spec": {"containers": [container], **spec}}, Pod, "pod")


@pytest.mark.parametrize(("pods", "victims"), [(1_000, 10), (10_000, 10), (10_000, 1_000)])
def test_victims_from_pod_objects(benchmark, pods, victims):
    """The table is built from Pod objects each time."""
    benchmark.group = (
        f"preempt {victims} of {pods} pods, table and all (kubelet: {PREEMPTIONS[pods, victims]})"
    )
    columns = requests("ordinary", pods)
    objects = [make_pod(number, columns) for number in range(pods)]
    preemptor = make_pod(0, columns, priority=2_000_000_000)
    preemptor.metadata.uid = "preemptor"
    _, _, _, _, _, _, _, _, needs = situation("ordinary", pods, victims)
    wanted = {"cpu": int(needs[0]), "memory": int(needs[1])}
    decision = benchmark(preempt, objects, preemptor, wanted)
    assert decision.victims


ADMISSIONS = {110: "0.47 ms", 1_000: "4.2 ms", 5_000: "21.4 ms"}


@pytest.fixture(scope="module", params=ADMISSIONS)
def admitted(request) -> NodeAllocations:
    allocatable = {"cpu": "100k", "memory": "100Ti", "pods": "6000"}
    node = convert({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}, Node, "node")
    columns = requests("ordinary", request.param)
    return NodeAllocations(node, [make_pod(number, columns) for number in range(request.param)])


def test_admit_one_pod(benchmark, admitted):
    """Every check for one pod, by running sums."""
    benchmark.group = f"admit one pod beside {len(admitted)} (kubelet: {ADMISSIONS[len(admitted)]})"
    pod = make_pod(0, requests("ordinary", 1))
    pod.metadata.uid = "candidate"
    assert benchmark(decide, admitted, pod).admit


@pytest.mark.parametrize("count", ADMISSIONS)
def test_admit_one_pod_agent(benchmark, count):
    """Through the manager: the pod is judged, counted, and goes again."""
    benchmark.group = f"admit one pod beside {count} (kubelet: {ADMISSIONS[count]})"
    allocatable = {"cpu": "100k", "memory": "100Ti", "pods": "6000"}
    columns = requests("ordinary", count)
    admission = Admission(
        node=convert({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}, Node, "node"),
        kill_pod=lambda pod, end: None,
        recorder=EventRecorder(lambda: 0.0),
        registry=Registry(),
        pods=[make_pod(number, columns) for number in range(count)],
    )
    pod = make_pod(0, columns)
    pod.metadata.uid = "candidate"

    def come_and_go() -> bool:
        verdict = admission.reserve(pod)
        admission.admitted.remove(pod.uid)
        return verdict.admit

    assert benchmark(come_and_go)


@pytest.fixture(scope="module")
def cluster() -> ClusterTables:
    nodes, each = 10_000, 100
    columns = requests("ordinary", nodes * each)
    tables = ClusterTables.from_arrays(
        node_names=[f"n{i}" for i in range(nodes)],
        allocatable=np.zeros((3, nodes), np.int64),
        pod_limit=np.full(nodes, 110),
        offsets=np.arange(0, nodes * each + 1, each),
        requests=columns,
        qos=np.random.default_rng(1).integers(0, 3, nodes * each).astype(np.uint8),
    )
    tables.allocatable[:] = used_on_each_node(tables)
    return tables


@pytest.mark.parametrize("threads", [1, 0], ids=["one thread", "all cores"])
def test_everywhere(benchmark, cluster, threads):
    """One critical pod on each of 10,000 full nodes with 100 pods; goal: below 1 s on two cores."""
    benchmark.group = "one critical pod on each of 10,000 nodes, a million pods"
    pod = make_pod(0, np.array([[4000], [8 << 30]]), priority=2_000_000_001)
    pod.metadata.uid = "candidate"
    used = used_on_each_node(cluster)

    def ask() -> Victims:
        short = shortages_everywhere(cluster, pod, used, threads=threads)
        return victims_everywhere(cluster, pod, short.ids, short.missing, threads=threads)

    assert not benchmark.pedantic(ask, rounds=5, warmup_rounds=1).left.any()


@pytest.mark.parametrize("policy", ["kubelet", "priority", "minimal"])
def test_policies(benchmark, policy):
    """Few victims among 250 pods; the searches of the last two are exact here."""
    benchmark.group = "policies: 250 pods"
    columns = requests("ordinary", 250)
    table = PodTable.from_pods([make_pod(number, columns) for number in range(250)])
    preemptor = make_pod(0, columns, priority=2_000_000_000)
    preemptor.metadata.uid = "preemptor"
    decision = benchmark(preempt, table, preemptor, {"cpu": 2000}, policy=policy, time_limit=5.0)
    assert decision.proven
