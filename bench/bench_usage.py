"""What a scrape costs at 2,500 pods of two containers: `pytest bench/bench_usage.py`.

Processor time, the kernel's with it, over a made-up tree of cgroups (v2, in /dev/shm); real ones cost the
kernel more. The runtime's answer, the walk through pods' files and network namespaces are not in it.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine._fast.reading import _groups_c, _groups_py
from engine._fast.reading.groups import ABSENT
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.usage import shown
from engine.node.usage.group import WIDTH
from engine.node.usage.sampler import UsageSampler
from engine.node.usage.used import NodeUsage
from engine.server.cadvisor_metrics import cadvisor_metrics

PODS = 2500
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


@pytest.fixture(scope="module")
def mount() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(dir="/dev/shm"))
    for pod in range(PODS):
        for name in ("", "cri-s{}.scope", "cri-a{}.scope", "cri-b{}.scope"):
            directory = top / f"kubepods/pod{pod:05}" / name.format(f"{pod:05}")
            directory.mkdir(parents=True, exist_ok=True)
            for file, text in FILES.items():
                (directory / file).write_text(text)
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
        mount=mount,
    )


def timed(
    benchmark: Benchmark, work: Callable[[], object], before: Callable[[], None] = lambda: None
) -> None:
    """`before` each time, which does not count."""
    benchmark._timer = time.process_time
    benchmark.pedantic(work, setup=before, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("form", [_groups_c, _groups_py], ids=["compiled", "twin"])
def test_read_5000_groups(benchmark: Benchmark, mount: Path, form: Any) -> None:
    """Each read whole, as at first."""
    cgroups = [f"kubepods/pod{pod:05}/cri-{c}{pod:05}.scope".encode() for pod in range(PODS) for c in "ab"]
    parents, due = np.full(len(cgroups), -1, np.int64), np.ones(len(cgroups), np.uint8)
    numbers = np.full((len(cgroups), WIDTH), ABSENT, np.int64)
    timed(benchmark, lambda: form.refresh_groups(str(mount), cgroups, parents, due, numbers, False))


def test_sample(benchmark: Benchmark, sampler: UsageSampler) -> None:
    """Every group of the node: pods, sandboxes and containers, 10,000 of them."""
    timed(benchmark, lambda: asyncio.run(sampler.sample()))


def test_cadvisor_text(benchmark: Benchmark, sampler: UsageSampler) -> None:
    usage = asyncio.run(sampler.sample())
    benchmark.extra_info["bytes"] = sum(map(len, cadvisor_metrics(usage)))
    timed(benchmark, lambda: cadvisor(usage))


def cadvisor(usage: NodeUsage) -> None:
    """As a connection takes it, piece after piece."""
    for _ in cadvisor_metrics(usage):
        pass


def summary(usage: NodeUsage) -> bytes:
    return msgspec.json.encode(
        [[shown.group(usage.sample(group)) for group in (pod.group, *pod.containers)] for pod in usage.pods]
    )


@pytest.mark.parametrize("page", [cadvisor, summary], ids=["cadvisor/agent", "summary/agent"])
def test_scrape(benchmark: Benchmark, sampler: UsageSampler, page: Callable[[NodeUsage], object]) -> None:
    """All from reading on, but for sending it."""
    timed(benchmark, lambda: page(asyncio.run(sampler.sample())))


@pytest.mark.parametrize("page", [cadvisor, summary], ids=["cadvisor/busy", "summary/busy"])
def test_scrape_of_busy_pods(
    benchmark: Benchmark, mount: Path, sampler: UsageSampler, page: Callable[[NodeUsage], bytes]
) -> None:
    """The same where every group has run since it was read before."""
    files = sorted(mount.rglob("cpu.stat"))
    used = itertools.count(3_000_000, 1_000_000)

    def run() -> None:
        text = FILES["cpu.stat"].replace("usage_usec 2500000", f"usage_usec {next(used)}")
        for file in files:
            file.write_text(text)

    timed(benchmark, lambda: page(asyncio.run(sampler.sample())), before=run)


def test_summary_json(benchmark: Benchmark, sampler: UsageSampler) -> None:
    """Groups in the kubelet's shape, of what has been read."""
    usage = asyncio.run(sampler.sample())
    timed(benchmark, lambda: summary(usage))
