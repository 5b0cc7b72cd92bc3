"""The image manager where the world misbehaves, against a runtime that the test controls."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.duration import Duration
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.events import EventRecorder
from engine.api.kubengine_config import ImagesSection
from engine.host.node_context import SteadyClock
from engine.images.lease import ImageLeases, normalized
from engine.images.manager import ImageManager
from engine.images.runtime_store import RemovalDeadline
from engine.metrics import Registry
from engine.wire import cri_v1_pb2 as cri
from tests.contexts import node_context
from tests.waiting import eventually

GIB = 1 << 30


class Runtime:
    """Answer as the test sets it, where a kernel and a daemon would take too long."""

    endpoint = "unix:///test"

    def __init__(self):
        self.images = {f"sha256:{n:02x}": GIB for n in range(5)}
        self.containers = []
        self.fail = {}
        self.removed = []

    async def list_images(self):
        self._maybe_fail("list_images")
        return [
            cri.Image(id=id, size=size, repo_tags=[f"example.com/{id[-2:]}:1"])
            for id, size in self.images.items()
        ]

    async def read_images(self, read):
        return read(cri.ListImagesResponse(images=await self.list_images()).SerializeToString())

    async def read_containers(self, read):
        self._maybe_fail("list_containers")
        return read(cri.ListContainersResponse(containers=self.containers).SerializeToString())

    async def list_container_stats(self, _filter=None):
        return []

    async def image_fs_info(self):
        self._maybe_fail("image_fs_info")
        usage = cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint="/images"))
        return cri.ImageFsInfoResponse(image_filesystems=[usage])

    async def remove_image(self, id, _handler=""):
        self._maybe_fail("remove_image")
        self.removed.append(id)
        del self.images[id]

    def _maybe_fail(self, call):
        if call in self.fail:
            raise self.fail[call]


@pytest.fixture
def disk(monkeypatch):
    """Replace `statvfs`: the disk has 10 GiB, of which 9 are used."""
    state = SimpleNamespace(blocks=10 * GIB, available=GIB, error=None, files=0, free_files=0)

    def statvfs(_path):
        if state.error:
            raise state.error
        return SimpleNamespace(
            f_blocks=state.blocks, f_bavail=state.available, f_frsize=1, f_bsize=1,
            f_files=state.files, f_favail=state.free_files,
        )  # fmt: skip

    monkeypatch.setattr(os, "statvfs", statvfs)
    return state


class Clock:
    def __init__(self, now=1e6):
        self.now = now

    def __call__(self):
        return self.now


def without_minimum_age(**config):
    """Return a configuration whose minimum age of images is 0. A file cannot set it: there 0 means the
    default, 2 minutes."""
    made = KubeletConfiguration(**config)
    if "image_minimum_gc_age" not in config:
        made.image_minimum_gc_age = Duration(0)
    return made


def make(runtime, section=None, pull=None, **config):
    elapsed, wall = Clock(0.0), Clock(1e9)
    recorder = EventRecorder(time.time)
    decisions, registry = Decisions(wall), Registry()
    manager = ImageManager(
        node_context(
            without_minimum_age(**config),
            images=section,
            recorder=recorder,
            decisions=decisions,
            registry=registry,
            clock=wall,
        ),
        runtime=runtime,
        pull=pull,
        monotonic=elapsed,
        period=0.01,
    )
    return SimpleNamespace(
        manager=manager,
        elapsed=elapsed,
        wall=wall,
        recorder=recorder,
        decisions=decisions,
        registry=registry,
    )


def reasons(recorder):
    return [event.reason for event in recorder]


async def test_a_failure_is_an_event_from_the_second_in_a_row(disk):
    runtime = Runtime()
    runtime.fail["list_images"] = Refused("no list")
    world = make(runtime)
    await world.manager.start()
    await eventually(lambda: "ImageGCFailed" in reasons(world.recorder))
    await world.manager.stop()
    first = next(iter(world.recorder))
    assert first.message == "no list"
    runtime.fail.clear()
    disk.available = 9 * GIB
    quiet = make(runtime)
    await quiet.manager.start()
    await asyncio.sleep(0.05)
    await quiet.manager.stop()
    assert reasons(quiet.recorder) == []


async def test_one_failure_alone_is_no_event(disk):
    runtime = Runtime()
    runtime.fail["list_images"] = Refused("no list")
    world = make(runtime)
    world.manager._period = 60
    await world.manager.start()
    await asyncio.sleep(0.05)
    await world.manager.stop()
    assert reasons(world.recorder) == []


async def test_capacity_zero_is_an_event_and_removes_nothing(disk):
    disk.blocks = 0
    runtime = Runtime()
    world = make(runtime)
    report = await world.manager.garbage_collect()
    assert (report.kind, runtime.removed) == ("invalid_capacity", [])
    assert reasons(world.recorder) == ["InvalidDiskCapacity"]


async def test_more_available_than_capacity_counts_as_all_available(disk):
    disk.available = 11 * GIB
    runtime = Runtime()
    report = await make(runtime).manager.garbage_collect()
    assert (report.error, report.wanted, runtime.removed) == ("", None, [])


async def test_statvfs_that_fails_removes_nothing(disk):
    disk.error = OSError(5, "Input/output error")
    runtime = Runtime()
    report = await make(runtime).manager.garbage_collect()
    assert (report.kind, runtime.removed) == ("stats", [])


async def test_a_clock_set_forward_makes_no_image_old(disk):
    disk.available = 9 * GIB
    runtime = Runtime()
    world = make(runtime, image_maximum_gc_age=Duration(3600))
    await world.manager.detect()
    world.wall.now += 365 * 86400
    await world.manager.garbage_collect()
    assert runtime.removed == []
    world.elapsed.now += 3601
    await world.manager.garbage_collect()
    assert len(runtime.removed) == 5


async def test_a_clock_set_back_hides_no_image(disk):
    runtime = Runtime()
    world = make(runtime, image_minimum_gc_age=Duration(60))
    await world.manager.detect()
    world.wall.now -= 86400
    world.elapsed.now += 61
    await world.manager.garbage_collect()
    assert runtime.removed != []


async def test_no_answer_to_a_removal_is_a_failure_and_forgets_nothing(disk):
    runtime = Runtime()
    runtime.fail["remove_image"] = Unavailable("no answer before the deadline")
    world = make(runtime)
    report = await world.manager.garbage_collect()
    assert report.kind == "delete_failed_space"
    assert len(world.manager.records) == 5
    assert "wanted to free" in report.error


async def test_one_that_cannot_go_is_passed_over_and_the_next_makes_up_for_it(disk):
    runtime = Runtime()
    stubborn = "sha256:01"
    remove = runtime.remove_image

    async def remove_others(id, handler=""):
        if id == stubborn:
            raise Refused("it is busy")
        await remove(id, handler)

    runtime.remove_image = remove_others
    rig = make(runtime, image_gc_high_threshold_percent=50, image_gc_low_threshold_percent=50)
    report = await rig.manager.garbage_collect()
    assert report.removed == ["sha256:00", "sha256:02", "sha256:03", "sha256:04"]
    assert report.attempted == sorted([*report.removed, stubborn])
    assert report.failed == {stubborn: "it is busy"}
    assert list(rig.manager.records.keys()) == [stubborn]
    taken = {d.inputs["image"]: (d.outcome, d.inputs["freed"]) for d in rig.decisions.after(0)}
    assert taken == {stubborn: ("failed", 0)} | dict.fromkeys(report.removed, ("collected", GIB))


async def test_images_removed_before_an_interrupted_run_are_known(disk):
    runtime = Runtime()
    remove, stuck = runtime.remove_image, asyncio.Event()

    async def remove_two(id, handler=""):
        if len(runtime.removed) == 2:
            stuck.set()
            await asyncio.Event().wait()
        await remove(id, handler)

    runtime.remove_image = remove_two
    rig = make(runtime, image_gc_high_threshold_percent=50, image_gc_low_threshold_percent=50)
    run = asyncio.create_task(rig.manager.garbage_collect())
    await stuck.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert list(rig.manager.records.keys()) == ["sha256:02", "sha256:03", "sha256:04"]
    assert [d.inputs["image"] for d in rig.decisions.after(0)] == ["sha256:00", "sha256:01"]


async def test_an_image_that_a_starting_pod_takes_during_a_run_stays(disk):
    runtime = Runtime()
    rig = make(
        runtime,
        section=ImagesSection(leases=True),
        image_gc_high_threshold_percent=50,
        image_gc_low_threshold_percent=50,
    )
    remove, lease = runtime.remove_image, rig.manager.lease("sha256:01")

    async def remove_and_hold(id, handler=""):
        if not runtime.removed:
            await lease.__aenter__()
        await remove(id, handler)

    runtime.remove_image = remove_and_hold
    report = await rig.manager.garbage_collect()
    await lease.__aexit__(None, None, None)
    assert report.removed == ["sha256:00", "sha256:02", "sha256:03", "sha256:04"]
    reasons = {v.key: v.reason for v in report.images if v.verdict == "kept"}
    assert reasons == {"sha256:01": "a pod that needs it is being started"}
    assert report.failed == {}


async def test_a_removal_without_an_answer_is_given_up_and_short_ones_before_it_are_not():
    patience = RemovalDeadline(0.05)
    for _ in range(20):
        patience.begin()
        await asyncio.sleep(0.01)
    patience.begin()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert patience.ended_it()
    assert not patience.ended_it()
    patience.end()
    await asyncio.sleep(0.1)
    patience.close()


async def test_inodes_alone_trigger_collection_where_configured(disk):
    disk.available, disk.files, disk.free_files = 9 * GIB, 1000, 50
    runtime = Runtime()
    section = ImagesSection(inode_high_threshold_percent=90, inode_low_threshold_percent=80)
    world = make(runtime, section)
    remove = runtime.remove_image

    async def frees_inodes(id, handler=""):
        await remove(id, handler)
        disk.free_files += 60

    runtime.remove_image = frees_inodes
    await world.manager.garbage_collect()
    assert len(runtime.removed) == 3
    assert (await make(Runtime()).manager.garbage_collect()).removed == []


async def test_image_volumes_count_as_use(disk):
    runtime = Runtime()
    runtime.containers = [
        cri.Container(id="c1", image_ref="sha256:00", metadata=cri.ContainerMetadata(name="c"))
    ]
    asked = []

    async def container_status(id):
        asked.append(id)
        mounts = [cri.Mount(image=cri.ImageSpec(image="sha256:01"))]
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(mounts=mounts))

    runtime.container_status = container_status  # type: ignore[attr-defined]
    world = make(runtime, feature_gates={"ImageVolume": True})
    await world.manager.delete_unused()
    await world.manager.detect()
    assert sorted(runtime.images) == ["sha256:00", "sha256:01"]
    assert asked == ["c1"]


async def test_a_container_that_names_its_image_by_tag_protects_it(disk):
    runtime = Runtime()
    runtime.containers = [
        cri.Container(id="c1", image_ref="example.com/03:1", metadata=cri.ContainerMetadata(name="c"))
    ]
    await make(runtime).manager.delete_unused()
    assert sorted(runtime.images) == ["sha256:03"]


async def test_the_list_of_images_is_asked_for_every_half_minute(disk):
    runtime = Runtime()
    world = make(runtime)
    assert len(await world.manager.images()) == 5
    runtime.images.clear()
    world.elapsed.now += 29
    assert len(await world.manager.images()) == 5
    world.elapsed.now += 1
    assert len(await world.manager.images()) == 0


async def test_a_lease_waits_for_a_removal_in_progress():
    leases, order = ImageLeases(), []

    async def start():
        async with leases.hold("example.com/a:1"):
            order.append("held")

    async with leases.removal(["sha256:00", "example.com/a:1"]):
        starting = asyncio.create_task(start())
        await asyncio.sleep(0.01)
        order.append("removed")
    await starting
    assert order == ["removed", "held"]
    assert not leases.holds(["example.com/a:1"])


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("me/app:2", "docker.io/me/app:2"),
        ("localhost/app", "localhost/app:latest"),
        ("r.io:5000/a@sha256:00", "r.io:5000/a@sha256:00"),
        ("r.io:5000/a", "r.io:5000/a:latest"),
        ("sha256:00", "sha256:00"),
    ],
)
def test_names_in_full(written, full):
    assert normalized(written) == full


def test_steady_clock():
    wall, elapsed = Clock(100.0), Clock(7.0)
    clock = SteadyClock(wall, elapsed)
    wall.now, elapsed.now = -5.0, 9.0
    assert clock() == 102.0


async def test_a_broken_records_file_is_reported_and_left(tmp_path, disk, caplog):
    (tmp_path / "image_gc_records.json").write_text("{")
    section = ImagesSection(keep_records=True)
    manager = ImageManager(
        node_context(KubeletConfiguration(), images=section, recorder=EventRecorder(time.time)),
        runtime=Runtime(),
        state_dir=tmp_path,
    )
    assert len(manager.records) == 0
    assert "image_gc_records.json" in caplog.text


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            ImagesSection(order="newest"),
            "images.order: 'newest' is not one of lru, largest-first, size-aware, layers",
        ),
        (
            ImagesSection(accounting="guessed"),
            "images.accounting: 'guessed' is not one of reported, measured",
        ),
    ],
)
def test_a_policy_that_does_not_exist_is_refused(section, message):
    with pytest.raises(InvalidInput) as refused:
        make(Runtime(), section)
    assert str(refused.value) == message


async def test_act_and_describe(disk):
    world = make(Runtime())
    planned = await world.manager.act("gc", {"dry-run": "true"})
    assert len(planned["attempted"]) == 1
    assert planned["images"][0]["verdict"] == "would-remove"
    with pytest.raises(InvalidInput, match="not one of gc"):
        await world.manager.act("drop", {})
    with pytest.raises(InvalidInput, match="dry-run"):
        await world.manager.act("gc", {"dry-run": "yes"})
    assert len((await world.manager.describe())["images"]) == 5
