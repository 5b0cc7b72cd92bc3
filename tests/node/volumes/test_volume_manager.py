"""Volumes from their making to their removal, whatever comes between: changes, deaths, hanging disks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.duration import RetryDelays
from engine.api.errors import NotFound, Refused
from engine.api.events import EventRecorder
from engine.api.meta import ObjectMeta
from engine.api.node import Node
from engine.api.objects.cluster_objects import Secret
from engine.api.pod import (
    Container,
    EmptyDirVolume,
    HostPathVolume,
    Pod,
    PodSpec,
    ProjectedVolume,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from engine.api.references import ObjectProjection, SecretVolume, ServiceAccountTokenProjection
from engine.csi.records import NoRecords
from engine.host.atomic_writer import PublishedFile
from engine.host.mountinfo import mounts_below
from engine.host.mounts import unmount_below
from engine.host.tasks import Tasks
from engine.metrics import Collected, Histogram, Registry
from engine.node.controlplane.control_plane import NoCluster
from engine.node.volumes import PodVolumes, VolumeHost, VolumeManager, VolumeRefused
from engine.node.volumes.attachments import Attachments
from engine.node.volumes.contents import Contents
from engine.node.volumes.csi_storage import CsiStorage
from engine.node.volumes.intree_storage import InTreeStorage
from engine.node.volumes.local_devices import LocalDevices
from tests.contexts import node_context
from tests.waiting import eventually

NOW = 1_700_000_000.0


def pod_with(*volumes: Volume) -> Pod:
    mounts = [VolumeMount(volume.name, f"/{volume.name}") for volume in volumes]
    return Pod(
        metadata=ObjectMeta(name="p", namespace="a", uid="u1"),
        spec=PodSpec(containers=[Container(name="c", volume_mounts=mounts)], volumes=list(volumes)),
    )


SECRET = pod_with(Volume("s", secret=SecretVolume("s")))


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[PodVolumes]:
    yield PodVolumes(tmp_path / "root", lambda: NOW)
    unmount_below(tmp_path)


def shown(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith("..")}


# Deaths


def dies_at(number: int, doing: Callable[[], object]) -> bool:
    """Run `doing` in a child that is killed just before its file operation `number` (from 0); tell whether
    it was killed."""
    child = os.fork()
    if child == 0:
        left = number

        def touch(event: str, _: tuple[Any, ...]) -> None:
            nonlocal left
            if event == "open" or event.startswith("os."):
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(touch)
        try:
            doing()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.root
def test_an_agent_killed_at_any_touch_leaves_nothing_that_the_next_does_not_mend(
    volumes: PodVolumes, tmp_path: Path
) -> None:
    old = {"s": Contents({"a": PublishedFile(b"old", 0o600), "x/y": PublishedFile(b"old", 0o600)})}
    new = {"s": Contents({"a": PublishedFile(b"new", 0o600), "b": PublishedFile(b"new", 0o600)})}
    at = 0
    while dies_at(at, lambda: volumes.set_up(SECRET, old, allocatable={})):
        path = volumes.set_up(SECRET, new, allocatable={})["s"]
        assert shown(path) == {"a": b"new", "b": b"new"}
        assert sum(file.name.startswith("..") for file in path.iterdir()) == 2
        assert len(mounts_below(tmp_path)) == 1
        volumes.tear_down("u1")
        at += 1
    assert at > 20, "it was killed all the way"
    volumes.set_up(SECRET, old, allocatable={})
    at = 0
    while dies_at(at, lambda: volumes.set_up(SECRET, new, allocatable={})):
        path = tmp_path / "root/pods/u1/volumes/kubernetes.io~secret/s"
        assert (path / "a").read_bytes() in (b"old", b"new"), "all the time it can be read"
        volumes.set_up(SECRET, old, allocatable={})
        at += 1
    at = 0
    while dies_at(at, lambda: volumes.tear_down("u1")):
        volumes.tear_down("u1")
        assert mounts_below(tmp_path) == []
        assert volumes.known_uids() == set()
        volumes.set_up(SECRET, new, allocatable={})
        at += 1
    assert at > 5
    assert mounts_below(tmp_path) == []


# The keeper


class Objects(NoCluster):
    """Serve one secret, and tokens that are numbered."""

    def __init__(self, **data: bytes) -> None:
        self.data: dict[str, bytes] | None = data
        self.tokens = 0
        self.forgotten: list[str] = []
        self.renew_at = float("inf")
        self._changed: Callable[[str], None] = lambda _: None

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    def on_change(self, changed: Callable[[str], None]) -> None:
        self._changed = changed

    async def secret(self, pod: Pod, name: str) -> Secret:
        if self.data is None:
            raise NotFound(f'secret "{name}" not found')
        return Secret(data=self.data)

    async def token(self, pod: Pod, audience: str, seconds: int) -> Any:
        self.tokens += 1
        return SimpleNamespace(text=f"token {self.tokens}", renew_at=self.renew_at, expires_at=0.0)

    def change(self, **data: bytes) -> None:
        self.data = data
        self._changed("u1")


@pytest.fixture
def recorder() -> EventRecorder:
    return EventRecorder(lambda: NOW)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def keep(
    volumes: PodVolumes, recorder: EventRecorder, registry: Registry, tmp_path: Path
) -> Callable[[Objects], VolumeManager]:
    def made(objects: Objects) -> VolumeManager:
        csi = CsiStorage(
            node_context(
                root=tmp_path / "root", name="n1", registry=registry, tasks=Tasks(), clock=lambda: NOW
            ),
            objects,
            NoRecords(),
            Attachments(lambda: None),
        )
        return VolumeManager(
            node_context(recorder=recorder, registry=registry, tasks=Tasks(), clock=lambda: NOW),
            volumes,
            objects,
            csi,
            LocalDevices(tmp_path / "root", recorder),
            InTreeStorage(tmp_path / "root", objects, None, Tasks()),
            VolumeHost(lambda: ("192.0.2.1",), Node, dict),
        )

    return made


@pytest.mark.root
async def test_many_changes_end_in_the_last_one(keep: Callable[[Objects], VolumeManager]) -> None:
    objects = Objects(a=b"0")
    keeper = keep(objects)
    path = (await keeper.set_up(SECRET))["s"]
    for number in range(1, 50):
        objects.change(a=str(number).encode())
        await asyncio.sleep(0)
    await eventually(lambda: shown(path) == {"a": b"49"})
    await keeper.tear_down("u1")
    assert not path.exists()
    assert objects.forgotten == ["u1"]


@pytest.mark.root
async def test_a_change_while_the_volumes_are_made_is_not_lost(
    keep: Callable[[Objects], VolumeManager], volumes: PodVolumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(a=b"old")
    keeper, loop, made = keep(objects), asyncio.get_running_loop(), volumes.set_up

    def set_up(*arguments: Any, **named: Any) -> dict[str, Path]:
        paths = made(*arguments, **named)
        loop.call_soon_threadsafe(lambda: objects.change(a=b"new"))
        return paths

    monkeypatch.setattr(volumes, "set_up", set_up)
    path = (await keeper.set_up(SECRET))["s"]
    await eventually(lambda: shown(path) == {"a": b"new"})
    await keeper.tear_down("u1")


@pytest.mark.root
async def test_held_contents_change_afterwards(keep: Callable[[Objects], VolumeManager]) -> None:
    objects = Objects(a=b"old")
    keeper = keep(objects)
    path = (await keeper.set_up(SECRET))["s"]
    async with keeper.hold_contents("u1"), keeper.hold_contents("another"):
        objects.change(a=b"new")
        # A change is written in a few turns of the loop, of which a thread takes one.
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert shown(path) == {"a": b"old"}
    await eventually(lambda: shown(path) == {"a": b"new"})
    await keeper.tear_down("u1")


@pytest.mark.root
async def test_a_token_is_renewed_when_it_is_time(
    keep: Callable[[Objects], VolumeManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.node.volumes.volume_manager.RETRIES", RetryDelays(0.01, 120.0))
    objects = Objects()
    source = VolumeProjection(service_account_token=ServiceAccountTokenProjection("token"))
    keeper = keep(objects)
    objects.renew_at = NOW
    path = (await keeper.set_up(pod_with(Volume("t", projected=ProjectedVolume([source])))))["t"]
    await eventually(lambda: shown(path)["token"] != b"token 1")
    await keeper.tear_down("u1")
    asked = objects.tokens
    await asyncio.sleep(0)
    assert objects.tokens == asked


@pytest.mark.root
async def test_volumes_are_not_removed_while_they_are_set_up(
    keep: Callable[[Objects], VolumeManager],
    volumes: PodVolumes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker stops waiting for a disk that hangs; a directory that the disk creates later is removed."""
    keeper, goes_on, made = keep(Objects(a=b"1")), threading.Event(), volumes.set_up

    def hanging(*arguments: Any, **named: Any) -> dict[str, Path]:
        assert goes_on.wait(60)
        return made(*arguments, **named)

    monkeypatch.setattr(volumes, "set_up", hanging)
    waiting = asyncio.create_task(keeper.set_up(SECRET))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    monkeypatch.setattr("engine.node.volumes.volume_manager.PATIENCE_SECONDS", 0.01)
    with pytest.raises(Refused, match="still being set up"):
        await keeper.tear_down("u1")
    monkeypatch.setattr("engine.node.volumes.volume_manager.PATIENCE_SECONDS", 60.0)
    leaving = asyncio.create_task(keeper.tear_down("u1"))
    await asyncio.sleep(0)
    goes_on.set()
    await leaving
    assert mounts_below(tmp_path) == []
    assert volumes.known_uids() == set()


@pytest.mark.root
async def test_a_later_failure_is_reported_once_and_retried(
    keep: Callable[[Objects], VolumeManager], recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.node.volumes.volume_manager.RETRIES", RetryDelays(0.01, 120.0))
    objects = Objects(a=b"1")
    source = VolumeProjection(secret=ObjectProjection("s"))
    keeper = keep(objects)
    path = (await keeper.set_up(pod_with(Volume("v", projected=ProjectedVolume([source])))))["v"]
    broken = objects.secret
    tries = 0

    async def refused(*_: object) -> Secret:
        nonlocal tries
        tries += 1
        raise Refused("not now")

    monkeypatch.setattr(objects, "secret", refused)
    objects.change(a=b"2")
    await eventually(lambda: tries > 2)
    monkeypatch.setattr(objects, "secret", broken)
    await eventually(lambda: shown(path) == {"a": b"2"})
    said = [event.message for event in recorder if event.reason == "FailedMount"]
    assert said == ['MountVolume.SetUp failed for volume "v" : not now']
    await keeper.tear_down("u1")


@pytest.mark.root
async def test_volumes_are_counted_by_plugin_and_their_operations_by_outcome(
    keep: Callable[[Objects], VolumeManager], registry: Registry, tmp_path: Path
) -> None:
    keeper = keep(Objects(a=b"1"))
    missing = HostPathVolume(str(tmp_path / "none"), type="Directory")
    pod = pod_with(
        Volume("e", empty_dir=EmptyDirVolume()),
        Volume("s", secret=SecretVolume("s")),
        Volume("h", host_path=missing),
    )

    def volumes_are(state: str) -> dict[str, float]:
        counted = registry.metrics["volume_manager_total_volumes"]
        assert isinstance(counted, Collected)
        return {plugin: value for (plugin, of), value in counted.collect() if of == state}

    def operations() -> dict[tuple[str, ...], int]:
        lasted = registry.metrics["storage_operation_duration_seconds"]
        assert isinstance(lasted, Histogram)
        return {labels: sum(counts) for labels, counts in lasted.counts.items()}

    plugins = [f"kubernetes.io/{name}" for name in ("empty-dir", "host-path", "secret")]
    with pytest.raises(VolumeRefused):
        await keeper.set_up(pod)
    assert volumes_are("desired_state_of_world") == dict.fromkeys(plugins, 1)
    assert volumes_are("actual_state_of_world") == {}
    assert operations() == {
        ("kubernetes.io/empty-dir", "volume_mount", "success", "false"): 1,
        ("kubernetes.io/secret", "volume_mount", "success", "false"): 1,
        ("kubernetes.io/host-path", "volume_mount", "fail-unknown", "false"): 1,
    }
    Path(missing.path).mkdir()
    await keeper.set_up(pod)
    assert volumes_are("actual_state_of_world") == dict.fromkeys(plugins, 1)
    await keeper.remove_volumes("u1")
    assert volumes_are("desired_state_of_world") == volumes_are("actual_state_of_world") == {}
    taken = {labels[0]: count for labels, count in operations().items() if labels[1] == "volume_unmount"}
    assert taken == dict.fromkeys(plugins, 1)


async def test_a_failed_setup_names_the_volume(keep: Callable[[Objects], VolumeManager]) -> None:
    objects = Objects()
    objects.data = None
    keeper = keep(objects)
    with pytest.raises(VolumeRefused) as caught:
        await keeper.set_up(SECRET)
    assert str(caught.value) == 'MountVolume.SetUp failed for volume "s" : secret "s" not found'
    await keeper.tear_down("u1")
