"""A node whose only pod is busy, over directories that stand for cgroups (v2)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.api.struct import to_json
from engine.api.timestamps import rfc3339
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.nodeinfo.node_metrics import count_node
from engine.node.stats import shown
from engine.node.stats.network import Interface
from engine.node.stats.sampler import UsageSampler
from engine.node.stats.used import NodeUsage
from tests.laid_out_cgroups import laid_out
from tests.server.secured import SecuredView


def _proc(top: Path) -> Path:
    """Create a /proc for this process on a machine with one disk."""
    (top / "self").mkdir(parents=True, exist_ok=True)
    (top / "self/mountinfo").write_text(f"1 1 8:1 / {top} rw - ext4 /dev/sda1 rw\n")
    (top / "diskstats").write_text("8 1 sda1 1 2 3 4 5 6 7 8 9 10 11\n")
    own = top / str(os.getpid())
    if not own.is_symlink():
        own.symlink_to(f"/proc/{os.getpid()}")
    return top


@dataclass
class BusyView(SecuredView):
    """Represent a node with one busy pod, whose numbers rise from one reading to the next."""

    tree: Path = Path()
    reads: int = 0
    sampler: UsageSampler = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        container = ContainerRecord("cid", "c", "s", RUNNING, 0, 1.0, 2.0, image="registry.example/i:1")
        self.records["u"] = PodRecord("u", "p", "default", [SandboxRecord("s", True, 0, 1.0)], [container])
        self.sampler = UsageSampler(
            pods=self.records.values,
            pod_cgroup=lambda uid: f"/kubepods/{uid}",
            pods_root=lambda: "/kubepods",
            runtime=self.tree / "none.sock",
            clock=time.time,
            mounts=laid_out(self.tree),
            proc=_proc(self.tree / "proc"),
        )
        count_node(self.registry, self.name, self.records.values)
        self.relists = self.registry.histogram("kubelet_pleg_relist_duration_seconds", "Relists.")

    async def usage(self, *, descriptors: bool = False) -> NodeUsage:
        self.relists.observe(0.01)
        self.reads += 1
        n = self.reads
        for group in ("", "kubepods", "kubepods/u", "kubepods/u/s", "kubepods/u/cid"):
            (self.tree / group).mkdir(parents=True, exist_ok=True)
            for name, text in {
                "cpu.stat": f"usage_usec {n}000000\nuser_usec {n}00\nsystem_usec {n}00\nnr_periods {n}00\n"
                f"nr_throttled {n}0\nthrottled_usec {n}00\nnr_bursts {n}\nburst_usec {n}\n",
                "cpu.max": "50000 100000\n",
                "cpu.weight": "39\n",
                "memory.current": "9000000\n",
                "memory.peak": "9900000\n",
                "memory.swap.current": "0\n",
                "memory.stat": "anon 5000000\nfile 4000000\nfile_mapped 2\ninactive_file 1\nactive_file 1\n"
                "pgfault 3\n",
                "io.stat": f"8:0 rbytes={n}000 wbytes={n}000 rios={n} wios={n}\n",
                "pids.current": "3\n",
                "cgroup.procs": f"{os.getpid()}\n",
                "memory.events": f"max 0\noom 0\noom_kill {n}\n",
                **{
                    f"{resource}.pressure": "".join(
                        f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={n}000\n"
                        for kind in ("some", "full")
                    )
                    for resource in ("cpu", "memory", "io")
                },
            }.items():
                (self.tree / group / name).write_text(text)
        return await self.sampler.sample(descriptors=descriptors)

    async def stats_summary(self) -> Iterable[bytes]:
        usage = await self.usage()
        (pod,) = usage.pods
        reference = {"name": "p", "namespace": "default", "uid": "u"}
        group = shown.group(usage.sample(pod.containers[0]))
        containers = [{"name": "c", "startTime": rfc3339(2.0), **group}]
        whole = {"podRef": reference, "containers": containers, **shown.group(usage.sample(pod.group))}
        return [to_json({"node": shown.group(usage.sample(usage.root)), "pods": [whole]})]


def let_it_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer each question again, independently of the devices of this machine."""
    monkeypatch.setattr("engine.node.stats.sampler.SHARED_SECONDS", 0.0)
    monkeypatch.setattr("engine.node.stats.sampler.interfaces_of", interfaces)
    monkeypatch.setattr("engine.server.cadvisor_metrics.device_name", lambda major, minor: "/dev/sda")


def interfaces(pid: int | str) -> list[Interface]:
    """Return one network interface, whose counters rise with the clock."""
    return [Interface("eth0", *[time.monotonic_ns() // 10**6] * 8)]
