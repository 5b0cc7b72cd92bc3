"""What a scrape costs at 2,500 pods of two containers: `pytest bench/bench_usage.py`.

Processor time, the kernel's with it, over a made-up tree of cgroups (v2, in /dev/shm); real ones cost the
kernel more. The call of the runtime, the walk through pods' files and network namespaces are not in it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine._fast.reading import _groups_c
from engine._fast.reading.groups import ABSENT
from engine.cli.agent.start_up import tune_garbage_collection
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.host.cgroupfs.mounts import CgroupHierarchy, Mounts
from engine.node.stats import runtime_numbers
from engine.node.stats.group import WIDTH
from engine.node.stats.sampler import UsageSampler
from engine.node.stats.summary_pods import PodFiles, SummaryPods
from engine.node.stats.used import NodeUsage
from engine.server.cadvisor_metrics import CadvisorPage
from engine.server.resource_metrics import resource_metrics
from engine.wire import cri_v1_pb2 as cri
from tests.fast.reading import groups_twin

PODS = 2500
DESCRIPTORS = 10  # of each of the two processes of a group
LIMITS = "Max open files            1024                 524288               files\n"
Benchmark = Any
FILES = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 3\n"
    "throttled_usec 7\nnr_bursts 0\nburst_usec 0\n",
    "cpu.weight": "20\n",
    "cpu.max": "50000 100000\n",
    "memory.current": "100000000\n",
    "memory.max": "200000000\n",
    "memory.peak": "150000000\n",
    "memory.swap.max": "max\n",
    "memory.swap.current": "0\n",
    "memory.stat": "anon 60000000\nfile 40000000\nfile_mapped 3000000\ninactive_file 30000000\n"
    + "".join(f"other_{line} 0\n" for line in range(31))
    + "pgfault 9000\npgmajfault 2\n",
    "memory.events": "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n",
    "cgroup.procs": "1\n22\n",
    "pids.current": "5\n",
    "pids.max": "max\n",
    "io.stat": "8:0 rbytes=1000000 wbytes=2000000 rios=100 wios=200 dbytes=0 dios=0\n",
}


@pytest.fixture(autouse=True)
def collected_as_in_the_agent() -> Iterator[None]:
    before = gc.get_threshold()
    tune_garbage_collection()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture(scope="module")
def mount() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(dir="/dev/shm"))
    for pod in range(PODS):
        for name in ("", "cri-s{}.scope", "cri-a{}.scope", "cri-b{}.scope"):
            directory = top / f"kubepods/pod{pod:05}" / name.format(f"{pod:05}")
            directory.mkdir(parents=True, exist_ok=True)
            for file, text in FILES.items():
                (directory / file).write_text(text)
    for process in ("1", "22"):
        (top / "proc" / process / "fd").mkdir(parents=True)
        (top / "proc" / process / "limits").write_text(LIMITS)
        for number in range(DESCRIPTORS):
            (top / "proc" / process / "fd" / str(number)).symlink_to(f"socket:[{number}]")
    yield top
    shutil.rmtree(top)


@pytest.fixture
def sampler(mount: Path) -> UsageSampler:
    pods = [
        PodRecord(
            f"{pod:05}",
            f"web-{pod}",
            "default",
            [SandboxRecord(f"s{pod:05}", True, 0, 1.0, host_network=True)],
            [
                ContainerRecord(
                    f"{c}{pod:05}", f"c-{c}", "s", RUNNING, 0, 1.0, 2.0, image="registry.example/web:1"
                )
                for c in "ab"
            ],
        )
        for pod in range(PODS)
    ]
    now = iter(range(10, 1 << 30, 10))
    return UsageSampler(
        pods=lambda: pods,
        pod_cgroup=lambda uid: f"/kubepods/pod{uid}",
        pods_root=lambda: "/kubepods",
        runtime=mount / "none.sock",
        clock=lambda: float(next(now)),
        mounts=Mounts(2, (CgroupHierarchy(str(mount), frozenset()),)),
        proc=mount / "proc",
    )


def read(sampler: UsageSampler) -> NodeUsage:
    """Not by `asyncio.run`, which makes a text of the whole result when it looks for its signal handler."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(sampler.sample())
    finally:
        loop.close()


def timed(
    benchmark: Benchmark, work: Callable[[], object], before: Callable[[], None] = lambda: None
) -> None:
    """Measure the CPU time of `work`; `before` runs before each round and is not counted."""
    benchmark._timer = time.process_time
    benchmark.pedantic(work, setup=before, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("form", [_groups_c, groups_twin], ids=["compiled", "twin"])
def test_read_5000_groups(benchmark: Benchmark, mount: Path, form: Any) -> None:
    """Each read whole, as at first."""
    cgroups = [f"kubepods/pod{pod:05}/cri-{c}{pod:05}.scope".encode() for pod in range(PODS) for c in "ab"]
    parents, due = np.full(len(cgroups), -1, np.int64), np.ones(len(cgroups), np.uint8)
    numbers = np.full((len(cgroups), WIDTH), ABSENT, np.int64)
    timed(benchmark, lambda: form.refresh_groups([str(mount)], cgroups, parents, due, numbers.reshape(-1)))


def test_sample(benchmark: Benchmark, sampler: UsageSampler) -> None:
    """Every group of the node: pods, sandboxes and containers, 10,000 of them."""
    timed(benchmark, lambda: read(sampler))


def test_cadvisor_text(benchmark: Benchmark, sampler: UsageSampler) -> None:
    usage = read(sampler)
    benchmark.extra_info["bytes"] = sum(map(len, CadvisorPage().text(usage)))
    cadvisor = Cadvisor()
    timed(benchmark, lambda: cadvisor(usage))


class Cadvisor:
    """Render the cAdvisor page in pieces, as a connection writes it."""

    def __init__(self) -> None:
        self._page = CadvisorPage()

    def __call__(self, usage: NodeUsage) -> None:
        for _ in self._page.text(usage):
            pass


def resource(usage: NodeUsage) -> None:
    for _ in resource_metrics(usage):
        pass


def stats_of(usage: NodeUsage) -> bytes:
    """Return the encoded ListPodSandboxStats answer of a runtime for the same pods."""
    second = int(usage.time) * 10**9
    stats = [
        cri.PodSandboxStats(
            attributes=cri.PodSandboxAttributes(
                id=pod.record.sandbox.id if pod.record.sandbox is not None else "",
                metadata=cri.PodSandboxMetadata(
                    name=pod.record.name, uid=pod.record.uid, namespace="default"
                ),
            ),
            linux=cri.LinuxPodSandboxStats(
                containers=[
                    cri.ContainerStats(
                        attributes=cri.ContainerAttributes(
                            id=each.id, metadata=cri.ContainerMetadata(name=each.name)
                        ),
                        writable_layer=cri.FilesystemUsage(
                            timestamp=second,
                            used_bytes=cri.UInt64Value(value=4096),
                            inodes_used=cri.UInt64Value(value=7),
                        ),
                    )
                    for each in pod.record.containers
                ]
            ),
        )
        for pod in usage.pods
    ]
    return cri.ListPodSandboxStatsResponse(stats=stats).SerializeToString()


class Summary:
    """Render the summary's pods in pieces, as a connection writes them, from a runtime's encoded statistics.

    The files' usage is measured once.
    """

    def __init__(self) -> None:
        self._pods, self._stats = SummaryPods(), b""
        self._files: dict[str, PodFiles] = {}

    def __call__(self, usage: NodeUsage) -> None:
        if not self._stats:
            self._stats = stats_of(usage)
            disk = dict.fromkeys(("availableBytes", "capacityBytes", "inodesFree", "inodes"), 10**9)
            used = {"time": "2026-01-01T00:00:00Z", **disk, "usedBytes": 4096, "inodesUsed": 1}
            self._files = {
                pod.record.uid: PodFiles({"c-a": used, "c-b": used}, [], frozenset(), (4096, 1), disk)
                for pod in usage.pods
            }
        stats = runtime_numbers.read(self._stats)
        for _ in self._pods.pages(b'{"pods":[', usage, stats, self._files, {}):
            pass


@pytest.mark.parametrize(
    "page", [Cadvisor(), resource, Summary()], ids=["cadvisor/agent", "resource/agent", "summary/agent"]
)
def test_scrape(benchmark: Benchmark, sampler: UsageSampler, page: Callable[[NodeUsage], object]) -> None:
    """All from reading on, but for sending it."""
    timed(benchmark, lambda: page(read(sampler)))


@pytest.mark.parametrize("page", [Cadvisor(), Summary()], ids=["cadvisor/busy", "summary/busy"])
def test_scrape_of_busy_pods(
    benchmark: Benchmark, mount: Path, sampler: UsageSampler, page: Callable[[NodeUsage], object]
) -> None:
    """The same where every group has run since it was read before."""
    files = sorted(mount.rglob("cpu.stat"))
    used = itertools.count(3_000_000, 1_000_000)

    def run() -> None:
        text = FILES["cpu.stat"].replace("usage_usec 2500000", f"usage_usec {next(used)}")
        for file in files:
            file.write_text(text)

    timed(benchmark, lambda: page(read(sampler)), before=run)


def test_summary_json(benchmark: Benchmark, sampler: UsageSampler) -> None:
    """Render the summary of a usage that has been read."""
    usage, summary = read(sampler), Summary()
    timed(benchmark, lambda: summary(usage))
