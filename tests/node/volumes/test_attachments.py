"""Volumes in use, as the Node's status has them, and the wait until one is attached."""

from __future__ import annotations

import asyncio

from engine.node.volumes.attachments import Attachments
from tests.waiting import PATIENCE

DISK = "kubernetes.io/csi/disk.example^1"
OTHER = "kubernetes.io/csi/disk.example^2"


def test_a_volume_is_in_use_until_its_last_pod_ends_and_each_change_is_reported():
    told: list[list[str] | None] = []
    known = Attachments(lambda: told.append(known.in_use))
    known.use(DISK, "left by an earlier agent")
    assert known.in_use is None
    known.complete()
    known.use(OTHER, "a")
    known.use(DISK, "b")
    known.release(DISK, "left by an earlier agent")
    known.release(DISK, "nobody")
    known.release("nothing", "b")
    assert known.in_use == [DISK, OTHER]
    known.release(DISK, "b")
    assert known.in_use == [OTHER]
    assert len(told) == 4


async def test_a_volume_is_usable_once_it_is_attached_and_reported_in_use():
    known = Attachments(lambda: None)
    waiting = asyncio.create_task(known.wait_until_attached(DISK))
    for status in (
        {"volumesAttached": [{"name": DISK, "devicePath": "/dev/x"}]},
        {"volumesInUse": [DISK], "volumesAttached": [{"name": OTHER, "devicePath": ""}]},
    ):
        await asyncio.sleep(0)
        known.node_changed(status)
        await asyncio.sleep(0)
        assert not waiting.done()
    known.node_changed({"volumesInUse": [DISK], "volumesAttached": [{"name": DISK, "devicePath": "/dev/x"}]})
    async with asyncio.timeout(PATIENCE):
        await waiting
