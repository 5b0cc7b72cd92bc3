"""The pods of a summary as they are written, beside the same put together as plain dictionaries."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.stats import runtime_numbers
from engine.node.stats.network import Interface
from engine.node.stats.sampler import UsageSampler
from engine.node.stats.summary_pods import PodFiles, SummaryPods
from engine.wire import cri_v1_pb2 as cri
from tests.laid_out_cgroups import laid_out
from tests.node.plain_summary import plain_pods

FILES = {
    "cpu.stat": "usage_usec {}\n",
    "memory.current": "{}\n",
    "memory.max": "400\n",
    "memory.stat": "anon 600\nfile 400\ninactive_file 300\npgfault 9\npgmajfault 2\n",
    "memory.swap.current": "{}\n",
    "memory.swap.max": "900\n",
    "pids.current": "{}\n",
    "cpu.pressure": "some avg10=1.50 avg60=0.20 avg300=0.00 total={}\n",
    "io.pressure": "full avg10=12.05 avg60=0.20 avg300=100.00 total={}\n",
}
NETWORK = [
    Interface("eth0", *range(8)),
    Interface('odd"name', *range(10, 18)),
]


def value(chance: random.Random) -> cri.UInt64Value | None:
    return chance.choice((None, cri.UInt64Value(), cri.UInt64Value(value=chance.getrandbits(62))))


def use(chance: random.Random, at: int) -> dict[str, Any]:
    cpu = cri.CpuUsage(
        timestamp=at, usage_nano_cores=value(chance), usage_core_nano_seconds=cri.UInt64Value(value=1)
    )
    memory = cri.MemoryUsage(
        timestamp=at,
        usage_bytes=value(chance),
        rss_bytes=value(chance),
        working_set_bytes=cri.UInt64Value(value=7),
    )
    return {"cpu": chance.choice((None, cpu)), "memory": chance.choice((None, memory))}


def stats(chance: random.Random, uid: str, names: Sequence[str], now: float) -> cri.PodSandboxStats:
    at = int(now * 10**9) - chance.randrange(10**10)
    containers = [
        cri.ContainerStats(
            attributes=cri.ContainerAttributes(id=f"{uid}-{name}", metadata=cri.ContainerMetadata(name=name)),
            writable_layer=chance.choice(
                (
                    None,
                    cri.FilesystemUsage(
                        timestamp=at, used_bytes=cri.UInt64Value(value=5), inodes_used=value(chance)
                    ),
                )
            ),
            **use(chance, at),
        )
        for name in names
    ]
    processes = chance.choice((None, cri.ProcessUsage(process_count=cri.UInt64Value(value=3))))
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(
            id=f"{uid}-s", metadata=cri.PodSandboxMetadata(name=f"name-{uid}", uid=uid, namespace="n")
        ),
        linux=cri.LinuxPodSandboxStats(containers=containers, process=processes, **use(chance, at)),
    )


def files(chance: random.Random) -> PodFiles:
    disk = {
        "time": "t",
        "availableBytes": 5,
        "capacityBytes": 9,
        "inodesFree": 2,
        "inodes": chance.randrange(9),
    }
    logs = {name: {**disk, "usedBytes": chance.randrange(99), "inodesUsed": 1} for name in "ab"}
    volumes = [
        {"name": name, "usedBytes": chance.randrange(99), "inodesUsed": 4, "time": "t"} for name in "vw"
    ]
    return PodFiles(logs, volumes, frozenset("v"), (chance.randrange(99), 1), disk)


def read(told: Sequence[cri.PodSandboxStats]) -> runtime_numbers.RuntimeStats:
    return runtime_numbers.read(cri.ListPodSandboxStatsResponse(stats=told).SerializeToString())


def in_order(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "containers": sorted(pod["containers"], key=lambda each: each["name"])}


def use_alone(entry: dict[str, Any]) -> dict[str, Any]:
    """Return only the names, and CPU, memory and swap."""
    kept: dict[str, Any] = {
        name: entry[name]
        for name in ("podRef", "name", "startTime", "cpu", "memory", "swap")
        if name in entry
    }
    if "containers" in entry:
        kept["containers"] = [use_alone(each) for each in entry["containers"]]
    return kept


@pytest.mark.parametrize("seed", range(4))
def test_pods_are_written_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Pods come and go, run and rest, and the runtime reports more or less about them."""
    chance, now = random.Random(seed), [1_790_000_000.0]
    networks: dict[str, list[Interface]] = {}
    monkeypatch.setattr("engine.node.stats.sampler.interfaces_of", lambda pid: networks.get(str(pid), []))
    records: dict[str, PodRecord] = {}
    sampler = UsageSampler(
        pods=lambda: list(records.values()),
        pod_cgroup=lambda uid: f"/p/{uid}" if uid != "u0" else None,
        pods_root=lambda: None,
        runtime=tmp_path / "none.sock",
        clock=lambda: now[0],
        mounts=laid_out(tmp_path),
    )
    found: dict[str, PodFiles] = {}
    of_drivers = {"u2": [{"name": "d", "usedBytes": 5}]}
    written, short = SummaryPods(), SummaryPods(whole=False)
    for _ in range(6):
        now[0] += chance.choice((1.5, 10))
        for uid in [f"u{chance.randrange(6)}" for _ in range(4)]:
            sandbox = SandboxRecord(f"{uid}-s", True, 0, 1.0, host_network=chance.random() < 0.5)
            containers = [ContainerRecord(f"{uid}-{name}", name, "s", RUNNING, 0, 1.0, 77.5) for name in "ab"]
            records[uid] = PodRecord(
                uid, f"name-{uid}", "n", [sandbox], chance.sample(containers, chance.randrange(1, 3))
            )
            networks[str(len(uid) + int(uid[1:]))] = NETWORK
            for group in ("", f"{uid}-a", f"{uid}-b", f"{uid}-s"):
                directory = tmp_path / "p" / uid / group
                directory.mkdir(parents=True, exist_ok=True)
                for name, text in chance.sample(sorted(FILES.items()), chance.randrange(4, len(FILES) + 1)):
                    (directory / name).write_text(text.format(chance.randrange(10**6)))
                (directory / "cgroup.procs").write_text(f"{len(uid) + int(uid[1:])}\n")
            if chance.random() < 0.5:
                found[uid] = files(chance)
        records.pop(f"u{chance.randrange(6)}", None)
        told = [
            stats(chance, uid, chance.sample("abc", chance.randrange(4)), now[0])
            for uid in chance.sample([f"u{each}" for each in range(8)], 5)
        ]
        usage = asyncio.run(sampler.sample())
        here = {pod.record.uid for pod in usage.pods} | {each.attributes.metadata.uid for each in told}
        known = {uid: each for uid, each in found.items() if uid in here}
        page = b"".join(written.pages(b'{"pods":[', usage, read(told), known, of_drivers))
        shown = {pod["podRef"]["uid"]: in_order(pod) for pod in json.loads(page)["pods"]}
        wanted = plain_pods(usage, told, known, of_drivers)
        assert shown == {uid: in_order(pod) for uid, pod in wanted.items()}
        page = b"".join(short.pages(b'{"pods":[', usage, read(told), {}, {}))
        shown = {pod["podRef"]["uid"]: in_order(pod) for pod in json.loads(page)["pods"]}
        assert shown == {uid: in_order(use_alone(pod)) for uid, pod in wanted.items()}


def test_a_node_without_pods(tmp_path: Path) -> None:
    sampler = UsageSampler(
        pods=list,
        pod_cgroup=lambda uid: None,
        pods_root=lambda: None,
        runtime=tmp_path / "none.sock",
        clock=lambda: 5.0,
        mounts=laid_out(tmp_path),
    )
    usage = asyncio.run(sampler.sample())
    assert b"".join(SummaryPods().pages(b'{"pods":[', usage, read([]), {}, {})) == b'{"pods":[]}'
