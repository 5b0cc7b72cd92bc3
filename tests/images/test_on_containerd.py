"""Image GC on a real containerd whose images lie on a small file system of their own."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import ImagesSection
from engine.cri.client import RuntimeClient
from engine.images.filesystem import read_filesystem
from engine.images.manager import ImageManager
from engine.metrics import Registry
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG, PAUSE_TAG, padding_layer
from tests.contexts import node_context
from tests.frozen import frozen
from tests.images.pods_on_containerd import PodOnContainerd, add_image

pytestmark = [pytest.mark.containerd, pytest.mark.root]
MIB = 1 << 20


@pytest.fixture(scope="module")
def small(tmp_path_factory, busybox_archive):
    """Yield a containerd with 400 MB for images; every image takes its size twice, packed and unpacked."""
    with Containerd(tmp_path_factory.mktemp("small"), image_filesystem_mb=400) as running:
        running.import_image(busybox_archive)
        yield running


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
async def world(small, tmp_path, private_cgroup_root):
    client = RuntimeClient(str(small.socket))
    world = World(small, client, tmp_path, private_cgroup_root)
    yield world
    small.remove_pods()
    for image in await client.list_images():
        if any(name.startswith("example.com/") for name in image.repo_tags):
            await client.remove_image(image.id)
    await client.close()


class World:
    def __init__(self, containerd, client, tmp_path, cgroup):
        self.containerd, self.client, self.tmp_path, self.cgroup = containerd, client, tmp_path, cgroup
        self.clock = Clock()
        self.recorder = EventRecorder(time.time)
        self.registry = Registry()

    def manager(self, section=None, **config):
        kubelet = KubeletConfiguration(pod_logs_dir=str(self.tmp_path / "logs"), **config)
        if "image_minimum_gc_age" not in config:
            kubelet.image_minimum_gc_age = Duration(0)
        return ImageManager(
            node_context(
                kubelet, images=section, recorder=self.recorder, registry=self.registry, clock=self.clock
            ),
            runtime=self.client,
            state_dir=self.tmp_path / "state",
            monotonic=self.clock,
        )

    async def add(self, manager, *names, size=16 * MIB, layers=()):
        for name in names:
            await asyncio.to_thread(add_image, self.containerd, self.tmp_path, name, size, layers=layers)
            self.clock.now += 10
            if manager is not None:
                await manager.detect()
        self.clock.now += 10

    async def names(self):
        return {name for image in await self.client.list_images() for name in image.repo_tags}

    async def pod(self, name):
        pod = PodOnContainerd(self.client, self.cgroup, self.tmp_path / "logs", name)
        await pod.start()
        return pod

    def usage_percent(self):
        reading = read_filesystem(self.containerd.root)
        return 100 - reading.available * 100 // reading.capacity


def removed_names(report):
    return [
        name.split("/")[1].split(":")[0]
        for v in report.images
        if v.verdict == "removed"
        for name in v.names[:1]
    ]


async def test_frees_down_to_the_low_threshold_in_lru_order_and_keeps_what_is_used(world):
    manager = world.manager(
        ImagesSection(protect_sandbox_image=True),
        image_gc_high_threshold_percent=40,
        image_gc_low_threshold_percent=35,
    )
    await world.add(manager, "one", "two", "three", "four", "five", "six")
    keep = await world.pod("keep")
    await keep.run(BUSYBOX_TAG)
    dead = await world.pod("dead")
    await dead.run("example.com/two:1", "/nothing", start=False)
    await manager.detect()
    assert world.usage_percent() >= 40
    report = await manager.garbage_collect()
    assert report.error == ""
    assert world.usage_percent() <= 35
    removed = removed_names(report)
    left = await world.names()
    assert removed == ["one", "three", "four", "five", "six"][: len(removed)]
    assert {BUSYBOX_TAG, "example.com/two:1"} <= left
    assert not {f"example.com/{name}:1" for name in removed} & left
    kept = {v.names[0]: v.reason for v in report.images if v.verdict == "kept"}
    assert kept["example.com/two:1"] == "in use by a container"
    collected = world.registry.metrics["kubelet_image_garbage_collected_total"]
    assert collected.values == {("space",): len(removed)}


async def test_measured_accounting_stops_when_the_disk_says_so(world):
    manager = world.manager(
        ImagesSection(accounting="measured"),
        image_gc_high_threshold_percent=40,
        image_gc_low_threshold_percent=25,
    )
    shared = padding_layer(24 * MIB, "shared")
    await world.add(manager, "aa", "bb", layers=[shared], size=4 * MIB)
    await world.add(manager, "cc", "dd", "ee", "ff", size=20 * MIB)
    assert world.usage_percent() >= 40
    report = await manager.garbage_collect()
    assert report.error == ""
    assert world.usage_percent() <= 25
    freed = {v.names[0]: v.freed for v in report.images if v.verdict == "removed"}
    assert freed["example.com/aa:1"] < 16 * MIB < freed["example.com/bb:1"]
    assert report.freed - max(freed.values()) < report.wanted


async def test_dry_run_removes_nothing_and_reports_the_same(world):
    manager = world.manager(image_gc_high_threshold_percent=20, image_gc_low_threshold_percent=10)
    await world.add(manager, "one", "two", "three")
    before = await world.names()
    planned = await manager.garbage_collect(dry_run=True)
    assert await world.names() == before
    done = await manager.garbage_collect()
    assert planned.attempted == done.removed


async def test_min_age_keeps_even_under_pressure_and_max_age_removes_without(world):
    manager = world.manager(
        image_gc_high_threshold_percent=100,
        image_gc_low_threshold_percent=80,
        image_minimum_gc_age=Duration(60),
    )
    await world.add(manager, "young")
    assert (await manager.delete_unused()).removed == []
    world.clock.now += 60
    assert "young" in removed_names(await manager.delete_unused())
    assert "example.com/young:1" not in await world.names()


async def test_high_100_is_off_but_disk_pressure_still_deletes(world):
    manager = world.manager(image_gc_high_threshold_percent=100)
    await world.add(manager, "unused")
    assert manager.policy.off
    await manager.start()
    await asyncio.sleep(0.3)
    await manager.stop()
    assert "example.com/unused:1" in await world.names()
    await manager.delete_unused()
    assert "example.com/unused:1" not in await world.names()


async def test_the_sandbox_image_stays_when_configured(world):
    await asyncio.to_thread(_import_pause, world)
    manager = world.manager(ImagesSection(protect_sandbox_image=True))
    await world.add(manager, "unused")
    report = await manager.delete_unused()
    assert "example.com/unused:1" not in await world.names()
    reasons = {name: v.reason for v in report.images for name in v.names}
    assert reasons[PAUSE_TAG] == "the sandbox image"


def _import_pause(world):
    from engine.testing.images import write_pause

    world.containerd.import_image(write_pause(world.tmp_path / "pause.tar"))


async def test_a_leased_image_is_not_collected(world):
    manager = world.manager(ImagesSection(leases=True))
    await world.add(manager, "starting")
    async with manager.lease("example.com/starting:1"):
        await manager.delete_unused()
        assert "example.com/starting:1" in await world.names()
    await manager.delete_unused()
    assert "example.com/starting:1" not in await world.names()


async def test_a_kept_image_stays_whatever_happens(world):
    manager = world.manager(ImagesSection(keep=["example.com/ke*"]))
    await world.add(manager, "kept", "other")
    await manager.delete_unused()
    assert {"example.com/kept:1", "example.com/other:1"} & await world.names() == {"example.com/kept:1"}
    assert world.registry.metrics["kubengine_image_gc_protected"].values[()] >= 1


async def test_among_equally_old_images_unshared_layers_are_removed_first(world):
    manager = world.manager(ImagesSection(order="layers"))
    shared = padding_layer(24 * MIB, "shared")
    await world.add(None, "aa", "bb", layers=[shared], size=MIB)
    await world.add(None, "cc", size=20 * MIB)
    await manager.detect()
    world.clock.now += 10
    report = await manager.delete_unused()
    assert next(name for name in removed_names(report) if name in ("aa", "bb", "cc")) == "cc"
    freed = world.registry.metrics["kubengine_image_gc_freed_bytes_total"].values[()]
    assert freed == report.freed > 0


async def test_records_survive_a_restart(world):
    section = ImagesSection(keep_records=True)
    first = world.manager(section)
    await world.add(first, "old")
    await first.stop()
    world.clock.now += 100
    detected = {i["id"]: i["firstDetected"] for i in (await first.describe())["images"]}
    second = world.manager(section)
    await second.detect()
    again = {i["id"]: i["firstDetected"] for i in (await second.describe())["images"]}
    assert again == detected


async def test_a_failed_cleanup_names_what_else_fills_the_disk(world):
    manager = world.manager(image_gc_high_threshold_percent=10, image_gc_low_threshold_percent=1)
    filler = world.containerd.root / "filler"
    filler.write_bytes(bytes(64 * MIB))
    try:
        report = await manager.garbage_collect()
    finally:
        filler.unlink()
    assert report.kind == "insufficient"
    assert report.elsewhere["files that do not belong to the runtime"] >= 60 * MIB
    assert [e.reason for e in world.recorder] == ["FreeDiskSpaceFailed"]


async def test_a_runtime_that_hangs_on_remove_is_left_after_two_deadlines(world):
    manager = world.manager(ImagesSection(remove_timeout=Duration(0.3)))
    await world.add(manager, "aa", "bb", "cc", size=MIB)
    await manager.detect()
    with contextlib.ExitStack() as until_then:
        remove = world.client.remove_image

        async def freezing(*arguments):
            until_then.enter_context(frozen(world.containerd._process.pid))
            await remove(*arguments)

        world.client.remove_image = freezing
        until_then.callback(setattr, world.client, "remove_image", remove)
        report = await manager.delete_unused()
    assert report.kind == "delete_failed_space"
    assert report.removed == []
    failures = [v.reason for v in report.images if v.verdict == "failed"]
    assert sum("did not answer within 0.3 s" in reason for reason in failures) == 2
    assert all("left 2 removals in a row unanswered" in reason for reason in failures[2:])
    assert len(failures) >= 3
