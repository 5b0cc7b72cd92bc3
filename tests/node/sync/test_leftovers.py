"""What is left of pods that ended while no agent was looking."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from engine.node.volumes.pod_volumes import PodVolumes
from tests.node_rig import Rig, container
from tests.waiting import eventually

UID = "0e2a4c1d-0000-4000-8000-000000000001"


@pytest.fixture
def unreadable_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OSError]]:
    """Fail the first list of the pods' directories; check that it was read."""
    listed, faults = PodVolumes.known_uids, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def known_uids(volumes: PodVolumes) -> set[str]:
        if faults:
            raise faults.pop()
        return listed(volumes)

    monkeypatch.setattr(PodVolumes, "known_uids", known_uids)
    yield faults
    assert not faults


async def test_an_unsearchable_volume_is_removed_later(rig: Rig, unreadable_once: list[OSError]):
    left = rig.root / "pods" / UID / "volumes"
    left.mkdir(parents=True)
    rig.write("web", {"containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.phase("web") == "Running")
    await eventually(lambda: not left.parent.exists())
