"""Container GC on a real containerd: restarted copies, deleted pods, logs and links."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import ContainerGCSection
from engine.containers.manager import ContainerGC
from engine.cri.client import RuntimeClient
from engine.testing.images import BUSYBOX_TAG
from engine.wire import cri_v1_pb2 as cri
from tests.contexts import node_context
from tests.images.pods_on_containerd import PodOnContainerd
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root]


class World:
    def __init__(self, containerd, tmp_path, cgroup):
        self.containerd, self.cgroup, self.logs = containerd, cgroup, tmp_path / "logs"
        self.links = tmp_path / "links"
        self.links.mkdir()
        self.client = RuntimeClient(str(containerd.socket))
        self.deleted, self.terminated = set(), set()
        self.recorder = EventRecorder(time.time)

    def gc(self, **section):
        return ContainerGC(
            node_context(
                KubeletConfiguration(pod_logs_dir=str(self.logs)),
                recorder=self.recorder,
                container_gc=ContainerGCSection(**section),
            ),
            runtime=self.client,
            content_removed=lambda uid: uid in self.deleted,
            runtime_removed=lambda uid: uid in self.deleted | self.terminated,
            sources_ready=lambda: True,
            container_logs_dir=self.links,
        )

    async def pod(self, name):
        pod = PodOnContainerd(self.client, self.cgroup, self.logs, name)
        await pod.start()
        return pod

    async def dead_copies(self, pod):
        listed = await self.client.list_containers(cri.ContainerFilter(pod_sandbox_id=pod.sandbox))
        return Counter(c.metadata.name for c in listed if c.state != cri.CONTAINER_RUNNING)

    async def until_exited(self, pod):
        async def exited():
            listed = await self.client.list_containers(cri.ContainerFilter(pod_sandbox_id=pod.sandbox))
            return all(c.state == cri.CONTAINER_EXITED for c in listed)

        await eventually(exited)


@pytest.fixture
async def world(containerd, tmp_path, private_cgroup_root):
    world = World(containerd, tmp_path, private_cgroup_root)
    yield world
    await asyncio.to_thread(containerd.remove_pods)
    await world.client.close()


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param([2, 2], id="2x2"),
        pytest.param([4, 4, 4, 4], id="4x4", marks=pytest.mark.slow),
        pytest.param([4, 4, 4, 6, 6, 6, 5, 5, 5], id="3x(4,6,5)", marks=pytest.mark.slow),
    ],
)
async def test_restarting_containers_leave_the_allowed_copies_and_nothing_after_deletion(world, shape):
    gc = world.gc()
    pods = [await world.pod(f"p{number}") for number in range(len(shape))]
    for _restart in range(2):
        for pod, containers in zip(pods, shape, strict=True):
            for name in range(containers):
                await pod.run(BUSYBOX_TAG, "/bin/true", name=f"c{name}")
            await world.until_exited(pod)
        report = await gc.garbage_collect()
        assert report.error == ""
        for pod, containers in zip(pods, shape, strict=True):
            assert await world.dead_copies(pod) == {f"c{name}": 1 for name in range(containers)}
    newest = await world.client.list_containers()
    assert {c.metadata.attempt for c in newest if c.labels.get("io.kubernetes.pod.uid")} == {1}
    for pod in pods:
        await pod.stop()
        world.deleted.add(pod.uid)
    await gc.garbage_collect()
    uids = {pod.uid for pod in pods}
    assert not [c for c in await world.client.list_containers() if c.labels["io.kubernetes.pod.uid"] in uids]
    assert not [s for s in await world.client.list_pod_sandboxes() if s.metadata.uid in uids]
    assert list(world.logs.iterdir()) == []


async def test_a_running_container_and_its_sandbox_stay(world):
    pod = await world.pod("running")
    await pod.run(BUSYBOX_TAG)
    world.deleted.add(pod.uid)
    report = await world.gc(max_per_pod_container=0).garbage_collect()
    assert (report.removed, report.sandboxes) == ({}, [])
    assert len(await world.client.list_containers(cri.ContainerFilter(pod_sandbox_id=pod.sandbox))) == 1


async def test_terminated_pods_give_up_theirs_only_under_disk_pressure(world):
    pod = await world.pod("finished")
    await pod.run(BUSYBOX_TAG, "/bin/true")
    await world.until_exited(pod)
    await pod.stop()
    world.terminated.add(pod.uid)
    gc = world.gc()
    assert (await gc.garbage_collect()).removed == {}
    report = await gc.delete_all_unused()
    assert list(report.removed.values()) == ["its pod is gone"]
    assert report.sandboxes == [pod.sandbox]
    assert [p.name for p in world.logs.iterdir()] == [pod.log_directory.name]


async def test_min_age_and_total(world):
    pod = await world.pod("many")
    for name in ("a", "b", "c"):
        await pod.run(BUSYBOX_TAG, "/bin/true", name=name, start=False)
    assert (await world.gc(min_age=3600, max_containers=0).garbage_collect()).removed == {}
    report = await world.gc(max_containers=1).garbage_collect()
    assert len(report.removed) == 2
    assert await world.dead_copies(pod) == {"c": 1}


async def test_dangling_log_links_are_removed_and_others_stay(world):
    pod = await world.pod("linked")
    living = await pod.run(BUSYBOX_TAG)
    dead = await pod.run(BUSYBOX_TAG, "/bin/true", name="dead", start=False)
    log = pod.log_directory / "dead" / "0.log"
    log.write_text("x")
    log.with_name("0.log.20240101").write_text("x")
    for id in (living, dead, "0" * 64):
        (world.links / f"linked_default_c-{id}.log").symlink_to(world.logs / "nowhere" / id)
    world_gc = world.gc(max_per_pod_container=0)
    await world_gc.garbage_collect()
    assert [link.name for link in world.links.iterdir()] == [f"linked_default_c-{living}.log"]
    assert not log.exists()
    assert not log.with_name("0.log.20240101").exists()


async def test_a_runtime_that_is_away_is_an_event(tmp_path):
    recorder = EventRecorder(time.time)
    client = RuntimeClient(str(tmp_path / "none.sock"), timeout=0.2)
    gc = ContainerGC(
        node_context(KubeletConfiguration(pod_logs_dir=str(tmp_path / "logs")), recorder=recorder),
        runtime=client,
        content_removed=lambda _uid: True,
        runtime_removed=lambda _uid: True,
        sources_ready=lambda: True,
        container_logs_dir=tmp_path / "links",
        period=0.05,
    )
    await gc.start()
    await eventually(lambda: list(recorder))
    await gc.stop()
    await client.close()
    assert {event.reason for event in recorder} == {"ContainerGCFailed"}
