"""A pod fills a small disk on which images lie that nobody uses: they go and no pod does, where they suffice;
else a pod goes, the one that filled it. A real ext4, the embedded runtime's store and containers on it.
`KUBENGINE_DISK_PRESSURES=100` runs so many, each another by its number; `KUBENGINE_CRASH_SEED` is the
first."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.duration import Duration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.api.lifecycle import PodEnd
from engine.api.pod import EmptyDirVolume, Pod, Volume
from engine.cri.paths import EMPTY_DIR
from engine.eviction.cleanup import GarbageCollectors
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.images.filesystem import read_filesystem
from engine.images.manager import ImageManager
from engine.testing.images import padding_layer, write_image
from tests.contexts import node_context
from tests.disks import disk, run
from tests.eviction.private_node import MIB, make_pod
from tests.runtime.pods import BUSYBOX, Pods, embedded_runtime

RUNS = int(os.environ.get("KUBENGINE_DISK_PRESSURES", "3"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
THRESHOLD = 48 * MIB
"""More than any images of a run hold."""
SLACK = MIB
"""What a file system keeps for itself of what is written and removed, at most."""
SYNCHRONIZATIONS = 3

log = logging.getLogger(__name__)

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the mount point of an ext4 of 128 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    with disk(tmp_path / "file", 128 * MIB) as device:
        run("mkfs.ext4", "-q", str(device))
        run("mount", str(device), str(place))
        try:
            yield place
        finally:
            run("umount", str(place))


class FullNode:
    """Run a node whose files, images and containers lie on one disk; `evicted` names its ended pods."""

    def __init__(self, pods: Pods, root: Path) -> None:
        self.pods, self.root = pods, root
        self.evicted: list[str] = []
        volume = Volume("v", empty_dir=EmptyDirVolume())
        self.calm, self.filler = make_pod("calm"), make_pod("filler", volumes=[volume])
        self.ballast = root / "pods" / self.filler.uid / "volumes" / EMPTY_DIR / "v" / "ballast"
        self.ballast.parent.mkdir(parents=True)
        self.decisions = Decisions(time.time)

    @property
    def available(self) -> int:
        return read_filesystem(self.root).available

    def active_pods(self) -> list[Pod]:
        return [pod for pod in (self.calm, self.filler) if pod.metadata.name not in self.evicted]

    async def kill(self, pod: Pod, _end: PodEnd) -> None:
        self.evicted.append(pod.metadata.name)
        if pod is self.filler:
            self.ballast.unlink()

    def fill(self, missing: int) -> None:
        """Fill the disk until `missing` bytes less than the threshold are available."""
        with self.ballast.open("wb") as file:
            while (more := self.available - THRESHOLD + missing) > 0:
                file.write(bytes(min(more, MIB)))
                file.flush()
                os.fsync(file.fileno())

    async def synchronize(self, settle: float) -> None:
        """Synchronize an eviction manager `SYNCHRONIZATIONS` times; each could end a pod."""
        recorder = EventRecorder(time.time)
        config = KubeletConfiguration(
            eviction_hard={"nodefs.available": str(THRESHOLD)}, pod_logs_dir=str(self.root / "logs")
        )
        config.image_minimum_gc_age = Duration(0)
        manager = EvictionManager(
            node_context(
                config,
                eviction=EvictionSection(reclaim_settle=Duration(settle)),
                recorder=recorder,
                decisions=self.decisions,
                root=self.root,
            ),
            EvictablePods(
                active=self.active_pods,
                kill=self.kill,
                cgroup=lambda _uid: None,
                cleaned_up=lambda _uid: True,
            ),
            collectors=GarbageCollectors(
                images=ImageManager(node_context(config, recorder=recorder), runtime=self.pods.client)
            ),
            runtime=self.pods.client,
        )
        for _ in range(SYNCHRONIZATIONS):
            await manager.synchronize()
        await manager.stop()


async def one_run(number: int, pods: Pods, root: Path, archives: Path) -> str:
    """Fill the disk once, and return `images` if removing them sufficed, or `pod` if one was evicted too."""
    chance = random.Random(number)
    node = FullNode(pods, root / str(number))
    running = await pods.start(await pods.pod(), "sleep", "3600")
    used: set[str] = set()
    unused = 0
    for index in range(chance.randint(1, 6)):
        size = chance.randint(MIB // 4, 6 * MIB)
        tag = f"example.com/{number}-{index}:1"
        archive = write_image(archives / "one.tar", [tag], layers=[padding_layer(size, f"{number}-{index}")])
        image = await pods.client.pull_image(tag)
        archive.unlink()
        if index and chance.random() < 0.4:
            await pods.create(await pods.pod(), "/padding", image=tag)
            used.add(image)
        else:
            unused += size
    suffices = unused > 2 * SLACK and chance.random() < 0.75
    missing = chance.randint(1, unused - SLACK) if suffices else unused + SLACK
    node.fill(missing)
    assert node.available < THRESHOLD, number
    await node.synchronize(chance.choice([0, 2]))
    images = [image for image in await pods.client.list_images() if not image.pinned]
    left = {image.id for image in images if BUSYBOX not in image.repo_tags}
    state = (await pods.status(running)).state
    await pods.remove_all()
    for image in left:
        await pods.client.remove_image(image)
    node.ballast.unlink(missing_ok=True)
    assert left == used, number
    assert state == 1, number
    assert node.evicted == ([] if suffices else ["filler"]), (number, node.decisions.after(0))
    outcomes = [decision.outcome for decision in node.decisions.after(0) if decision.kind == "eviction"]
    assert outcomes == (["spared"] if suffices else ["evicted"]), number
    return "images" if suffices else "pod"


async def test_no_pod_is_evicted_where_images_suffice(
    tmp_path: Path, small_disk: Path, busybox_archive: Path, private_cgroup_root: str
):
    archives = tmp_path / "archives"
    archives.mkdir()
    outcomes: Counter[str] = Counter()
    place = small_disk / "runtime"
    place.mkdir()
    async with embedded_runtime(place, busybox_archive, private_cgroup_root, archives=archives) as pods:
        for number in range(SEED, SEED + RUNS):
            outcomes[await one_run(number, pods, small_disk / "kubelet", archives)] += 1
    log.info("%d disk pressures, and their outcomes: %s", RUNS, dict(outcomes))
    assert outcomes.total() == RUNS
