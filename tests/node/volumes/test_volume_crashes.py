"""An agent that is killed at any point while it makes a pod's volumes, changes them or takes them away.

A child process does the work and kills itself (SIGKILL) as its n-th change of the file system begins;
then another agent finishes it, or takes away what is there: no mount, no directory, no token is left.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.meta import ObjectMeta
from engine.api.objects.storage import BLOCK, LocalVolume, PersistentVolumeSpec
from engine.api.pod import (
    Container,
    EmptyDirVolume,
    Pod,
    PodSecurityContext,
    PodSpec,
    Volume,
    VolumeDevice,
    VolumeMount,
)
from engine.api.references import ConfigMapVolume, PersistentVolumeClaimVolume, SecretVolume
from engine.host import mounts
from engine.host.atomic_writer import PublishedFile
from engine.host.mountinfo import mounts_below
from engine.node.volumes import PodVolumes
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.contents import Contents
from engine.node.volumes.pod_volumes import VolumeSource
from engine.node.volumes.sub_path import mount_sub_path

pytestmark = pytest.mark.root

SECRET = b"a token that must not stay"
OPERATIONS = frozenset(
    {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.symlink", "mount"}
)
Work = Callable[[PodVolumes], None]


def files(text: bytes) -> Contents:
    return Contents({"a": PublishedFile(SECRET, 0o600), "d/b": PublishedFile(text, 0o644)})


class Case:
    """Hold a pod with one volume of each kind, and run operations on its volumes."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.data = directory / "data"
        self.disk = directory / "disk"
        (self.data / "kept").mkdir(parents=True)
        os.mknod(self.disk, stat.S_IFBLK | 0o600, os.makedev(7, 250))
        names = ("memory", "secret", "map", "local")
        mounted = [VolumeMount(name=name, mount_path=f"/{name}") for name in names]
        devices = [VolumeDevice(name="disk", device_path="/disk")]
        self.pod = Pod(
            spec=PodSpec(
                containers=[Container(name="c", volume_mounts=mounted, volume_devices=devices)],
                security_context=PodSecurityContext(fs_group=77),
                volumes=[
                    Volume("memory", empty_dir=EmptyDirVolume(medium="Memory")),
                    Volume("secret", secret=SecretVolume("s")),
                    Volume("map", config_map=ConfigMapVolume("m")),
                    Volume("local", persistent_volume_claim=PersistentVolumeClaimVolume("c")),
                    Volume("disk", persistent_volume_claim=PersistentVolumeClaimVolume("d")),
                ],
            )
        )
        self.pod.metadata.uid = "u"

    def given(self, text: bytes) -> dict[str, VolumeSource]:
        local = BoundVolume(ObjectMeta(name="pv"), LocalVolume(str(self.data)), directory=self.data)
        block = PersistentVolumeSpec(volume_mode=BLOCK)
        disk = BoundVolume(ObjectMeta(name="disk"), LocalVolume(str(self.disk)), block)
        return {name: files(text) for name in ("secret", "map")} | {"local": local, "disk": disk}

    def set_up(self, volumes: PodVolumes, text: bytes = b"1") -> None:
        paths = volumes.set_up(self.pod, self.given(text), allocatable={})
        directory = volumes.pod_directory("u")
        mount_sub_path(directory, "map", paths["map"], "d/b", "c", 3)

    def change(self, volumes: PodVolumes) -> None:
        self.set_up(volumes, b"2")

    def leave(self, volumes: PodVolumes) -> None:
        volumes.remove_volumes("u")

    def tear_down(self, volumes: PodVolumes) -> None:
        volumes.tear_down("u")


def dies_within(work: Callable[[], Any], at: int) -> bool:
    """Run `work` in a child that is killed at its `at`-th operation; tell whether it was killed before it
    was done."""
    child = os.fork()
    if child == 0:
        try:
            _kill_at(at)
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _kill_at(at: int) -> None:
    met = 0

    def meet(operation: str, *arguments: Any) -> None:
        nonlocal met
        writes = operation == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or operation in OPERATIONS:
            met += 1
            if met == at:
                os.kill(os.getpid(), signal.SIGKILL)

    mount, unmount = mounts._libc.mount, mounts._libc.umount2

    class Counting:
        def mount(self, *arguments: Any) -> int:
            meet("mount")
            return int(mount(*arguments))

        def umount2(self, *arguments: Any) -> int:
            meet("mount")
            return int(unmount(*arguments))

    mounts._libc = Counting()  # type: ignore[assignment]
    sys.addaudithook(lambda event, arguments: meet(event, *arguments))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    mounts.unmount_below(case.root)


def nothing_is_left(case: Case) -> None:
    assert mounts_below(case.root) == []
    assert list((case.root / "pods").iterdir()) == []
    assert (case.data / "kept").is_dir()


def is_whole(case: Case) -> bool:
    volumes = case.root / "pods/u/volumes"
    shown = [volumes / f"kubernetes.io~{name}" for name in ("secret/secret", "configmap/map")]
    link = volumes.parent / "volumeDevices/kubernetes.io~local-volume/disk"
    return link.readlink() == case.disk and all(
        (path / "a").read_bytes() == SECRET
        and sorted(p.name for p in path.iterdir() if not p.name.startswith("..")) == ["a", "d"]
        and sum(p.name.startswith("..") for p in path.iterdir()) == 2
        for path in shown
    )


def walk(case: Case, before: Work | None, work: Work) -> int:
    """Kill `work` at each of its operations, and return their number. After a kill, setting up again makes
    all volumes whole, and tearing down leaves nothing."""
    at = 1
    while True:
        volumes = PodVolumes(case.root)
        if before is not None:
            before(volumes)
        if not dies_within(lambda: work(PodVolumes(case.root)), at):
            volumes.tear_down("u")
            return at - 1
        if at % 2:
            case.set_up(PodVolumes(case.root), b"3")
            assert is_whole(case)
        PodVolumes(case.root).tear_down("u")
        nothing_is_left(case)
        at += 1


@pytest.mark.parametrize(
    ("before", "work"),
    [
        (None, Case.set_up),
        (Case.set_up, Case.change),
        (Case.set_up, Case.leave),
        (Case.set_up, Case.tear_down),
    ],
    ids=["set up", "change", "leave", "tear down"],
)
def test_volumes_half_made_by_a_killed_agent_are_finished_or_removed(
    case: Case, before: Any, work: Any
) -> None:
    first = None if before is None else lambda volumes: before(case, volumes)
    assert walk(case, first, lambda volumes: work(case, volumes)) > 10
