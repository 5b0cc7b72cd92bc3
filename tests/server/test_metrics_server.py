"""`/metrics/resource` as metrics-server reads it: it is the only source of `kubectl top`."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.stats import runtime_numbers
from engine.node.stats.group import Groups
from engine.node.stats.runtime_use import runtime_use
from engine.node.stats.sampler import UsageSampler
from engine.node.stats.used import NodeUsage, UsedGroup, UsedPod
from engine.server.http.exchange import Request, Response
from engine.server.resource_metrics import resource_metrics
from engine.server.routes import Routes
from engine.wire import cri_v1_pb2 as cri
from tests.laid_out_cgroups import laid_out
from tests.server.busy import BusyView, let_it_be_busy

_CPU, _MEMORY, _START = "cpu_usage_seconds_total", "memory_working_set_bytes", "start_time_seconds"
_SAMPLE = re.compile(r"^(node|container)_(\w+?)(\{.*\})? (\S+)(?: (\d+))?$")
NOW = 1_700_000_000.0


@dataclass
class Point:
    """Hold CPU seconds, memory bytes, and the start and the newest timestamp in Unix milliseconds."""

    cpu: float = 0.0
    memory: float = 0.0
    started: float = 0.0
    at: int = 0

    @property
    def complete(self) -> bool:
        return bool(self.cpu and self.memory)


def read(text: str) -> tuple[Point, dict[str, dict[str, Point]]]:
    """By metrics-server's rules (v0.8): a node without CPU or memory is no node, and a pod of which one
    container has a number but not both is left out as a whole. Pods are NAMESPACE/NAME."""
    node, pods = Point(), dict[str, dict[str, Point]]()
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[2] not in (_CPU, _MEMORY, _START):
            continue
        point = node
        if sample[1] == "container":
            container, pod, namespace = (
                sample[3].partition(f'{name}="')[2].partition('"')[0]
                for name in ("container", "pod", "namespace")
            )
            point = pods.setdefault(f"{namespace}/{pod}", {}).setdefault(container, Point())
        value = float(sample[4])
        if sample[2] == _START:
            point.started = value
            continue
        point.at = int(sample[5])
        if sample[2] == _CPU:
            point.cpu = value
        else:
            point.memory = value
    assert node.complete
    whole = {name: all(point.complete for point in containers.values()) for name, containers in pods.items()}
    return node, {name: containers for name, containers in pods.items() if whole[name]}


async def scraped(view: BusyView) -> str:
    response = await Routes(view).answer(Request("GET", "/metrics/resource"))
    assert isinstance(response, Response)
    assert not isinstance(response.body, bytes | AsyncGenerator)
    return b"".join(response.body).decode()


async def test_two_readings_give_the_use_of_nodes_and_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_it_be_busy(monkeypatch)
    view = BusyView(tree=tmp_path / "cgroup")
    began = int(time.time() * 1000)
    before, pods_before = read(await scraped(view))
    after, pods_after = read(await scraped(view))
    ((_, was),), ((name, now),) = pods_before["default/p"].items(), pods_after["default/p"].items()
    assert name == "c"
    for first, second in ((before, after), (was, now)):
        assert began <= first.at < second.at <= time.time() * 1000
        assert second.cpu - first.cpu == 1.0
    assert now.memory == 9_000_000 - 1
    assert now.started == was.started > 0


FILES = {
    "cpu.stat": "usage_usec 2500000\n",
    "memory.current": "100\n",
    "memory.stat": "inactive_file 30\n",
    "memory.swap.current": "4\n",
    "memory.swap.max": "10\n",
}


async def usage_of(mount: Path, of_b: Mapping[str, str]) -> NodeUsage:
    """Sample a node with one pod n/p: container `a` has readable files, container `b` has `of_b`."""
    for group, files in {"": FILES, "pods/u": FILES, "pods/u/s": FILES, "pods/u/id-a": FILES}.items():
        write(mount / group, files)
    write(mount / "pods/u/id-b", of_b)
    containers = [ContainerRecord(f"id-{name}", name, "s", RUNNING, 0, 1.0, 2.5) for name in "ab"]
    record = PodRecord("u", "p", "n", [SandboxRecord("s", True, 0, 1.0, host_network=True)], containers)
    sampler = UsageSampler(
        pods=lambda: [record],
        pod_cgroup=lambda uid: f"/pods/{uid}",
        pods_root=lambda: "/pods",
        runtime=mount / "none.sock",
        clock=lambda: NOW,
        mounts=laid_out(mount),
    )
    return await sampler.sample()


def write(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def page(usage: NodeUsage, stats: cri.PodSandboxStats | None = None) -> str:
    message = cri.ListPodSandboxStatsResponse(stats=[stats] if stats is not None else [])
    stats = runtime_numbers.read(message.SerializeToString())
    return b"".join(resource_metrics(usage, [*runtime_use(usage, stats)])).decode()


def of_runtime(uid: str, *names: str, cpu: bool = True) -> cri.PodSandboxStats:
    """Return a runtime's statistics of a pod, 3 s old: 2 s of CPU and 5 bytes for it and each container."""
    at = int(NOW - 3) * 10**9
    used: dict[str, Any] = {
        "memory": cri.MemoryUsage(timestamp=at, working_set_bytes=cri.UInt64Value(value=5))
    }
    if cpu:
        spent = cri.UInt64Value(value=2 * 10**9)
        used["cpu"] = cri.CpuUsage(timestamp=at, usage_core_nano_seconds=spent)
    containers = [
        cri.ContainerStats(
            attributes=cri.ContainerAttributes(metadata=cri.ContainerMetadata(name=name)), **used
        )
        for name in names
    ]
    identity = cri.PodSandboxMetadata(name="p", namespace="n", uid=uid)
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(metadata=identity),
        linux=cri.LinuxPodSandboxStats(containers=containers, **used),
    )


async def test_cgroup_values_are_shown_with_their_time_of_reading(tmp_path: Path) -> None:
    usage = await usage_of(tmp_path, FILES)
    assert not usage.lacking
    text = page(usage, of_runtime("u", "a", "b"))
    at = f" {int(NOW * 1000)}\n"
    for name, value in {
        "cpu_usage_seconds_total": "2.5",
        "memory_working_set_bytes": "70",
        "swap_usage_bytes": "4",
    }.items():
        for container in "ab":
            assert f'container_{name}{{container="{container}",namespace="n",pod="p"}} {value}{at}' in text
        assert f'pod_{name}{{namespace="n",pod="p"}} {value}{at}' in text
    assert f'container_swap_limit_bytes{{container="a",namespace="n",pod="p"}} 10{at}' in text
    assert 'container_start_time_seconds{container="b",namespace="n",pod="p"} 2.5\n' in text
    assert f"node_cpu_usage_seconds_total 2.5{at}" in text
    assert text.endswith("resource_scrape_error 0\n")
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names)) == 12


@pytest.mark.parametrize("files", [{}, {"memory.stat": "anon 5\n"}], ids=["nothing", "no CPU, no memory"])
async def test_an_unknown_container_does_not_hide_its_pod(tmp_path: Path, files: dict[str, str]) -> None:
    usage = await usage_of(tmp_path, files)
    assert usage.lacking
    assert list(read(page(usage))[1]["n/p"]) == ["a"]


async def test_a_pod_is_left_out_while_a_container_has_only_one_number(tmp_path: Path) -> None:
    usage = await usage_of(tmp_path, {"memory.current": "1\n"})
    assert usage.lacking
    assert read(page(usage))[1] == {}


async def test_the_runtime_supplies_what_cgroups_lack(tmp_path: Path) -> None:
    """A container without a cgroup gets all its numbers from the runtime; one with half of them, the rest."""
    stats = of_runtime("u", "a", "b")
    pods = read(page(await usage_of(tmp_path / "none", {}), stats))[1]
    assert pods["n/p"]["a"] == Point(2.5, 70, 2.5, int(NOW * 1000))
    assert pods["n/p"]["b"] == Point(2, 5, 2.5, int(NOW - 3) * 1000)
    half = page(await usage_of(tmp_path / "half", {"memory.current": "9\n"}), stats)
    assert read(half)[1]["n/p"]["b"] == Point(2, 9, 2.5, int(NOW * 1000))


async def test_pods_that_have_no_group_are_the_runtimes(tmp_path: Path) -> None:
    text = page(await usage_of(tmp_path, FILES), of_runtime("stranger", "c"))
    assert f'pod_memory_working_set_bytes{{namespace="n",pod="p"}} 5 {int(NOW - 3) * 1000}\n' in text
    assert read(text)[1]["n/p"]["c"] == Point(2, 5, 0, int(NOW - 3) * 1000)


async def test_of_two_containers_of_a_name_the_newest_is_shown(tmp_path: Path) -> None:
    """A runtime that lost one may not know whether it runs."""
    write(tmp_path / "p/new", FILES)
    write(tmp_path / "p/old", FILES | {"memory.current": "900\n"})
    containers = [ContainerRecord(each, "c", "s", RUNNING, 0, 1.0) for each in ("new", "old")]
    record = PodRecord("u", "p", "n", [], containers)
    groups = Groups()
    first = groups.add(["/p", "/p/new", "/p/old"])
    inner = [UsedGroup(f"/p/{c.id}", row, c.id, c) for row, c in enumerate(containers, first + 1)]
    root = UsedGroup("/", groups.add(["/"]))
    pod = UsedPod(record, UsedGroup("/p", first), inner)
    text = page(NodeUsage(NOW, groups.read(laid_out(tmp_path), NOW), root, {}, (pod,), [], (0, 0)))
    shown = [line for line in text.splitlines() if line.startswith("container_memory_working_set_bytes{")]
    assert shown == [
        f'container_memory_working_set_bytes{{container="c",namespace="n",pod="p"}} 70 {int(NOW * 1000)}'
    ]
