"""Test disk pressure on a model of a disk: no pod is evicted if cleaning up suffices.

The manager and image GC are the real ones. File system and runtime are a model, because no real one frees
blocks as late as a test needs.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.duration import Duration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.api.lifecycle import PodEnd
from engine.api.pod import Pod
from engine.eviction.cleanup import QUIET_READINGS, GarbageCollectors, Settling
from engine.eviction.layout import reclaims
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.images.manager import ImageManager
from engine.metrics import Registry
from engine.wire import cri_v1_pb2 as cri
from tests.contexts import node_context
from tests.eviction.private_node import MIB, make_pod

CAPACITY = 1000
THRESHOLD = 100


class Disk:
    """Model a disk in MiB: removed data becomes free a little with each reading."""

    def __init__(self, images: dict[str, int], in_use: set[str], pods: int, other: int, late: bool) -> None:
        self.images, self.in_use, self.pods, self.late = dict(images), in_use, pods, late
        self.used = sum(images.values()) + pods + other
        self.pending: list[int] = []

    endpoint = "unix:///model"

    def statvfs(self, _path: object) -> SimpleNamespace:
        for _ in range(1 if self.late else len(self.pending)):
            if self.pending:
                self.used -= self.pending.pop()
        free = max(CAPACITY - self.used, 0) * MIB
        return SimpleNamespace(
            f_blocks=CAPACITY * MIB, f_bavail=free, f_frsize=1, f_bsize=1, f_files=0, f_favail=0
        )

    async def read_images(self, read):
        listed = [
            cri.Image(id=name, size=size * MIB, repo_tags=[f"example.com/{name}:1"])
            for name, size in self.images.items()
        ]
        return read(cri.ListImagesResponse(images=listed).SerializeToString())

    async def read_containers(self, read):
        used = [
            cri.Container(id=f"c-{name}", image_ref=name, metadata=cri.ContainerMetadata(name="c"))
            for name in sorted(self.in_use)
        ]
        return read(cri.ListContainersResponse(containers=used).SerializeToString())

    async def image_fs_info(self):
        usage = cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint="/"))
        return cri.ImageFsInfoResponse(image_filesystems=[usage])

    async def list_containers(self, _filter=None):
        return []

    async def list_container_stats(self, _filter=None):
        return []

    async def remove_image(self, name, _handler=""):
        self.pending.append(self.images.pop(name))


class Node:
    """Run the eviction manager and image GC with one pod on a model disk."""

    def __init__(self, disk: Disk, directory: Path, settle: float) -> None:
        self.disk, self.decisions, self.registry = disk, Decisions(time.time), Registry()
        self.pod, self.evicted = make_pod("innocent"), False
        config = KubeletConfiguration(
            eviction_hard={"nodefs.available": f"{THRESHOLD}Mi"}, pod_logs_dir=str(directory / "logs")
        )
        config.image_minimum_gc_age = Duration(0)
        recorder = EventRecorder(time.time)
        images = ImageManager(node_context(config, recorder=recorder), runtime=disk)
        self.manager = EvictionManager(
            node_context(
                config,
                eviction=EvictionSection(reclaim_settle=Duration(settle)),
                recorder=recorder,
                decisions=self.decisions,
                registry=self.registry,
                root=Path("/"),
            ),
            EvictablePods(
                active=lambda: [] if self.evicted else [self.pod], kill=self._kill, cgroup=lambda _uid: None
            ),
            collectors=GarbageCollectors(images=images),
            runtime=disk,
        )

    async def _kill(self, _pod: Pod, _end: PodEnd) -> None:
        self.evicted = True
        self.disk.used -= self.disk.pods

    def cleanups(self) -> dict[tuple[str, ...], float]:
        return self.registry.metrics["kubengine_eviction_reclaims_total"].values

    async def run(self) -> bool:
        """Synchronize three times, and tell whether the pod was evicted."""
        for _ in range(3):
            await self.manager.synchronize()
        await self.manager.stop()
        return self.evicted


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that makes a node on a disk; readings after a cleanup follow each other at once."""
    monkeypatch.setattr("engine.eviction.cleanup.SETTLE_POLL", 0)

    def make(disk: Disk, *, settle: float) -> Node:
        monkeypatch.setattr(os, "statvfs", disk.statvfs)
        return Node(disk, tmp_path, settle)

    return make


def random_disk(seed: int, *, suffices: bool) -> Disk:
    """Return a full disk whose unused images hold more than is missing (`suffices`), or less."""
    chance = random.Random(seed)
    images = {f"sha256:{n:02x}": chance.randint(5, 60) for n in range(chance.randint(2, 12))}
    in_use = set(chance.sample(sorted(images), chance.randint(0, len(images) - 1)))
    unused = sum(size for name, size in images.items() if name not in in_use)
    missing = chance.randint(1, unused) if suffices else unused + chance.randint(1, 20)
    pods = 50 if suffices else 200
    used = CAPACITY - THRESHOLD + missing
    return Disk(images, in_use, pods, used - sum(images.values()) - pods, late=chance.random() < 0.8)


async def test_in_a_hundred_runs_no_pod_is_evicted_where_images_suffice(model):
    for seed in range(100):
        disk = random_disk(seed, suffices=True)
        node = model(disk, settle=60)
        assert not await node.run(), seed
        assert disk.in_use <= disk.images.keys(), seed
        (spared,) = [d for d in node.decisions.after(0) if d.kind == "eviction"]
        assert (spared.outcome, spared.inputs["signal"]) == ("spared", "nodefs.available"), seed
        assert spared.inputs["removed"]["images"] > 0, seed
        assert node.cleanups() == {("nodefs.available", "enough"): 1}, seed


async def test_a_pod_is_evicted_where_images_do_not_suffice(model):
    for seed in range(20):
        node = model(random_disk(seed, suffices=False), settle=60)
        assert await node.run(), seed
        assert node.decisions.after(0)[-1].outcome == "evicted", seed
        assert node.cleanups() == {("nodefs.available", "short"): 1}, seed


async def test_without_waiting_a_late_measurement_costs_a_pod(model):
    """Keep the kubelet's behaviour as the default."""
    disk = Disk({"sha256:00": 40, "sha256:01": 40}, set(), 50, CAPACITY - THRESHOLD - 60, late=True)
    assert await model(disk, settle=0).run()


async def test_an_interrupted_cleanup_is_waited_for(model, monkeypatch: pytest.MonkeyPatch):
    """The runtime hangs after it has removed enough."""
    monkeypatch.setattr("engine.eviction.cleanup.TIMEOUT", 0.2)
    disk = Disk({"sha256:00": 40, "sha256:01": 40}, set(), 50, CAPACITY - THRESHOLD - 60, late=True)
    remove = disk.remove_image

    async def hang_at_last(name: str, handler: str = "") -> None:
        await remove(name, handler)
        if not disk.images:
            await asyncio.Event().wait()

    monkeypatch.setattr(disk, "remove_image", hang_at_last)
    assert not await model(disk, settle=60).run()


def test_settling_waits_for_consecutive_quiet_samples():
    settling = Settling()
    readings = [10, 10, 20, 20, 15, 30, *[30] * QUIET_READINGS]
    assert [settling.update(available) for available in readings].index(True) == len(readings) - 1


@pytest.mark.parametrize("layout", ["shared", "imagefs", "split"])
def test_everything_may_be_cleaned_up_for_any_disk(layout):
    for signal in ("nodefs.available", "nodefs.inodesFree", "imagefs.available", "containerfs.inodesFree"):
        assert reclaims(layout, signal, everywhere=True) == ("containers", "images")
    assert reclaims(layout, "memory.available", everywhere=True) == ()
    assert reclaims(layout, "pid.available", everywhere=True) == ()
