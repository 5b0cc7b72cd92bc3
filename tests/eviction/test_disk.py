"""Disk pressure on a real containerd: cleaning up comes first, and often is enough."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection, ImagesSection
from engine.api.pod import EmptyDirVolume, Volume
from engine.api.quantity import Quantity
from engine.containers.manager import ContainerGC
from engine.cri.client import RuntimeClient
from engine.eviction.cleanup import GarbageCollectors
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.images.filesystem import read_filesystem
from engine.images.manager import ImageManager
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG
from tests.contexts import node_context
from tests.eviction.private_node import MIB, make_pod
from tests.frozen import frozen
from tests.images.pods_on_containerd import PodOnContainerd, add_image
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.containerd, pytest.mark.root]


@pytest.fixture(scope="module")
def small(tmp_path_factory, busybox_archive):
    with Containerd(tmp_path_factory.mktemp("small"), image_filesystem_mb=400) as running:
        running.import_image(busybox_archive)
        yield running


class World:
    """Run eviction on a small disk of containerd's; the node's files lie there too (`shared`), or not."""

    def __init__(self, containerd, tmp_path, node, *, shared=True):
        self.containerd, self.tmp_path, self.node = containerd, tmp_path, node
        self.root = containerd.root / "kubelet" if shared else tmp_path / "kubelet"
        self.root.mkdir(exist_ok=True)
        self.client = RuntimeClient(str(containerd.socket))
        self.recorder = EventRecorder(time.time)

    def manager(self, **config):
        kubelet = KubeletConfiguration(pod_logs_dir=str(self.root / "logs"), **config)
        kubelet.image_minimum_gc_age = Duration(0)  # a file cannot say it: there 0 is the default
        images = ImageManager(
            node_context(kubelet, recorder=self.recorder, images=ImagesSection(protect_sandbox_image=True)),
            runtime=self.client,
        )
        containers = ContainerGC(
            node_context(kubelet, recorder=self.recorder),
            runtime=self.client,
            content_removed=lambda _uid: False,
            runtime_removed=lambda _uid: False,
            sources_ready=lambda: True,
            container_logs_dir=self.tmp_path / "links",
        )
        return EvictionManager(
            node_context(
                kubelet,
                eviction=EvictionSection(interval=Duration(0.2)),
                recorder=self.recorder,
                root=self.root,
            ),
            EvictablePods(active=self.node.active_pods, kill=self.node.kill_pod, cgroup=self.node.pod_cgroup),
            collectors=GarbageCollectors(images=images, containers=containers),
            runtime=self.client,
            view=NodeView(self.node.cgroup, memory_capacity=1024 * MIB),
        )

    def available_mib(self):
        return read_filesystem(self.containerd.root).available // MIB


@pytest.fixture
async def world(small, tmp_path, node):
    world = World(small, tmp_path, node)
    yield world
    await cleared(world)


async def cleared(world):
    world.containerd.remove_pods()
    for image in await world.client.list_images():
        if any(name.startswith("example.com/") for name in image.repo_tags):
            await world.client.remove_image(image.id)
    await world.client.close()


async def test_image_gc_alone_suffices_and_no_pod_is_evicted(world):
    world.node.run(make_pod("innocent"), mib=1)
    before = world.available_mib()
    for name in ("one", "two"):
        add_image(world.containerd, world.tmp_path, name, 24 * MIB)
    manager = world.manager(eviction_hard={"nodefs.available": f"{before - 20}Mi"})
    assert await manager.synchronize() == []
    assert manager.reader.layout == "shared"
    assert manager.under_pressure == ("DiskPressure",)
    assert world.available_mib() >= before - 20
    assert world.node.ended == []
    assert await manager.synchronize() == []
    assert "Evicted" not in [event.reason for event in world.recorder]
    await manager.stop()


async def test_when_cleanup_is_not_enough_the_pod_using_most_disk_is_evicted(world):
    pods = {}
    for name, size in (("little", 4), ("much", 40)):
        pod = make_pod(name, volumes=[Volume(name="scratch", empty_dir=EmptyDirVolume())])
        world.node.run(pod, mib=1)
        directory = world.root / "pods" / pod.uid / "volumes" / "kubernetes.io~empty-dir" / "scratch"
        directory.mkdir(parents=True)
        (directory / "data").write_bytes(b"x" * (size * MIB))
        pods[name] = pod
    manager = world.manager(eviction_hard={"nodefs.available": f"{world.available_mib() + 20}Mi"})
    assert await manager.synchronize() == [pods["much"]]
    assert world.node.ended[0][1].annotations["starved_resource"] == "ephemeral-storage"
    await manager.stop()


async def test_with_a_dedicated_imagefs_nodefs_pressure_cleans_up_nothing(small, tmp_path, node):
    world = World(small, tmp_path, node, shared=False)
    try:
        pod = make_pod("pod")
        world.node.run(pod, mib=1)
        add_image(small, tmp_path, "unused", 8 * MIB)
        manager = world.manager(eviction_hard={"nodefs.available": "99.9%"})
        assert await manager.synchronize() == [pod]
        assert manager.reader.layout == "imagefs"
        names = [name for image in await world.client.list_images() for name in image.repo_tags]
        assert "example.com/unused:1" in names
        await manager.stop()
    finally:
        await cleared(world)


@pytest.mark.slow
async def test_a_writable_layer_over_its_limit_ends_the_pod(small, tmp_path, node, busybox_archive):
    small.import_image(busybox_archive)
    world = World(small, tmp_path, node)
    try:
        real = PodOnContainerd(world.client, f"{node.cgroup}/real", world.root / "logs", "writer")
        await real.start()
        await real.run(BUSYBOX_TAG, "/bin/sh", "-c", "dd if=/dev/zero of=/big bs=1M count=40; sleep 600")
        pod = make_pod("writer")
        pod.metadata.uid = real.uid
        pod.spec.containers[0].resources.limits = {"ephemeral-storage": Quantity.parse("20Mi")}
        node.pods[pod.uid] = pod
        manager = world.manager(eviction_hard={})
        for _ in range(60):
            evicted = await manager.synchronize()
            if evicted:
                break
            await asyncio.sleep(0.5)
        assert evicted == [pod]
        assert "exceeds the total limit of containers 20Mi" in node.ended[0][1].message
        await manager.stop()
    finally:
        await cleared(world)


async def test_a_runtime_that_is_away_stops_neither_memory_nor_the_loop(tmp_path, node):
    pod = make_pod("eater")
    node.run(pod, mib=60)
    manager = EvictionManager(
        node_context(
            KubeletConfiguration(eviction_hard={"memory.available": "50Mi"}),
            recorder=EventRecorder(time.time),
            root=tmp_path,
        ),
        EvictablePods(active=node.active_pods, kill=node.kill_pod, cgroup=node.pod_cgroup),
        runtime=RuntimeClient(str(tmp_path / "none.sock"), timeout=0.3),
        view=NodeView(node.cgroup, memory_capacity=100 * MIB),
    )
    assert await manager.synchronize() == [pod]
    await manager.stop()


async def test_a_runtime_that_hangs_holds_up_a_memory_eviction_by_seconds_at_most(small, tmp_path, node):
    world = World(small, tmp_path, node)
    pod = make_pod("eater")
    node.run(pod, mib=60)
    manager = world.manager(eviction_hard={"memory.available": "1000Mi"})
    with frozen(small._process.pid):
        async with asyncio.timeout(PATIENCE):
            assert await manager.synchronize() == [pod]
        assert manager.reader.imagefs is None
    await manager.stop()
    await cleared(world)
