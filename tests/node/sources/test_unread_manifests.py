"""A manifest that the disk does not give for a moment is not a manifest that was taken away."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from engine.api.documents import read_with_status
from engine.api.errors import InvalidInput
from engine.api.lifecycle import PodEnd
from engine.host import checksummed_file
from engine.node.running_node import RECORDS
from engine.node.sources import manifests as sources
from tests.node_rig import Rig, container
from tests.waiting import eventually


class Disk:
    """Fail reads of files, and lists of directories, with a name in `names` while `broken`."""

    def __init__(self, patch: pytest.MonkeyPatch, *names: str) -> None:
        self.broken = True
        self._names = names
        stamps = sources._stamps

        def failing_read(path: Path) -> tuple[bytes, os.stat_result]:
            try:
                self._meet(path)
            except OSError as error:
                raise InvalidInput(os.strerror(errno.EIO), subject=str(path)) from error
            return read_with_status(path)

        def failing_stamps(path: Path) -> object:
            self._meet(path)
            return stamps(path)

        patch.setattr(sources, "read_with_status", failing_read)
        patch.setattr(sources, "_stamps", failing_stamps)

    def _meet(self, path: Path) -> None:
        if self.broken and path.name in self._names:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


@pytest.mark.parametrize("name", ["a.yaml", "manifests"])
async def test_running_pods_outlive_it(rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rig.write("a", {"containers": [container()]})
    node = await rig.start()

    def runs() -> bool:
        return rig.phase("a") == "Running"

    await eventually(runs)
    before = {c.id for c in node.running.watch.pods[node.pods()[0].uid].containers}
    disk = Disk(monkeypatch, name)
    node = await rig.restart()
    assert not node.pods()
    disk.broken = False
    await eventually(runs)
    assert {c.id for c in node.running.watch.pods[node.pods()[0].uid].containers} == before
    assert "FailedManifest" in rig.reasons()


async def test_one_that_stays_unreadable_holds_up_others_for_a_while_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FIRST_READ_SECONDS", 0.3)
    Disk(monkeypatch, "a.yaml")
    for name in "ab":
        rig.write(name, {"containers": [container()]})
    await rig.start()

    def runs() -> bool:
        return rig.phase("b") == "Running"

    await eventually(runs)
    assert rig.pod("a") is None


async def test_a_pod_stays_while_its_changed_manifest_cannot_be_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rig.write("a", {"containers": [container()]})
    node = await rig.start()

    def runs() -> bool:
        return rig.phase("a") == "Running"

    await eventually(runs)
    [before] = node.pods()
    disk = Disk(monkeypatch, "a.yaml")
    path.write_text(path.read_text() + "\n# the same\n")

    def is_reported() -> bool:
        return "FailedManifest" in rig.reasons()

    await eventually(is_reported)
    assert node.pods()[0].uid == before.uid
    rig.write("a", {"containers": [container(image="busybox:2")]})
    disk.broken = False

    def is_new() -> bool:
        return [c.image for p in node.pods() for c in p.spec.containers] == ["busybox:2"] and runs()

    await eventually(is_new)


async def test_pods_of_an_earlier_agent_keep_running_while_their_records_are_unread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that was ended is not begun again, and one that runs not ended, where descriptors are short."""
    rig.write("a", {"containers": [container()]})
    rig.write("b", {"containers": [container()]})
    node = await rig.start()

    def both_run() -> bool:
        return rig.phase("a") == rig.phase("b") == "Running"

    await eventually(both_run)
    before = {c.id for record in node.running.watch.pods.values() for c in record.containers}
    pod = rig.pod("b")
    assert pod is not None
    await node.kill_pod(pod, PodEnd("Evicted", "the node was short of it"))
    await eventually(lambda: rig.phase("b") == "Failed")
    short, read = True, checksummed_file._read

    def failing_read(path: Path) -> bytes:
        if short and path.name == RECORDS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return read(path)

    await rig.stop()
    monkeypatch.setattr(checksummed_file, "_read", failing_read)
    starting = asyncio.ensure_future(rig.start())
    await asyncio.sleep(0.5)
    short = False
    node = await starting
    await eventually(lambda: (rig.phase("a"), rig.phase("b")) == ("Running", "Failed"))
    after = {c.id for record in node.running.watch.pods.values() for c in record.containers}
    assert after <= before
