"""Kill containerd (SIGKILL) at random points while pods come and go.

No pod ever has two processes of its container, no container that ran is restarted, and nothing is left at the
end. `KUBENGINE_CONTAINERD_KILLS` sets the number of kills.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.cri.client import RuntimeClient
from engine.host.mountinfo import mounts_below
from engine.testing.containerd import Containerd
from tests.chaos.conftest import repetitions
from tests.groups import groups_with
from tests.node_rig import Rig
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root, pytest.mark.slow]

KILLS = repetitions("KUBENGINE_CONTAINERD_KILLS", 5)
NAMES = "abcd"
UID = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
LONGEST = 2.5
"""Seconds from a change until a kill: a start takes about one."""


@pytest.fixture
async def rig(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> AsyncIterator[Rig]:
    rig = Rig(
        tmp_path, containerd.socket, cgroups_per_qos=True, enforce_node_allocatable=["pods"],
        cgroup_root=private_cgroup_root,
    )  # fmt: skip
    yield rig
    await rig.close()


class Campaign:
    """Change manifests at random, and count the processes of their pods."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._chance = random.Random(KILLS)
        self._mark = f"CAMPAIGN={secrets.token_hex(8)}"
        self.lived: set[str] = set()

    async def pause(self, most: float) -> None:
        await asyncio.sleep(self._chance.random() * most)

    def change(self) -> None:
        """Add, remove or replace one manifest."""
        name = self._chance.choice(NAMES)
        path = self._rig.manifests / f"{name}.yaml"
        if path.exists() and self._chance.random() < 0.4:
            path.unlink()
            return
        variable, _, value = self._mark.partition("=")
        salt = {"name": "SALT", "value": str(self._chance.random())}
        container = {
            "name": "c", "image": "busybox", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "exec sleep 100000"],
            "env": [{"name": variable, "value": value}, UID, salt],
        }  # fmt: skip
        self._rig.write(name, {"containers": [container]})

    def wanted(self) -> list[str]:
        return sorted(path.stem for path in self._rig.manifests.glob("*.yaml"))

    def processes(self) -> Counter[str]:
        """Return the number of running container processes, by the pod's uid."""
        found: Counter[str] = Counter()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdecimal() else []
                if self._mark.encode() in variables and (entry / "cmdline").read_bytes().startswith(b"sleep"):
                    found[next(v for v in variables if v.startswith(b"POD_UID=")).decode()] += 1
        return found

    def check(self) -> None:
        found = self.processes()
        assert not [uid for uid, number in found.items() if number > 1], "started twice"
        self.lived |= set(found)

    def settled(self) -> bool:
        wanted = self.wanted()
        running = [name for name in NAMES if self._rig.phase(name) == "Running"]
        return running == wanted and len(self.processes()) == len(wanted)


async def test_nothing_starts_twice_and_nothing_is_left(
    rig: Rig, containerd: Containerd, busybox_archive: Path, private_cgroup_root: str
) -> None:
    containerd.import_image(busybox_archive)
    await rig.start()
    campaign = Campaign(rig)
    for _ in range(KILLS):
        for _ in range(2):
            campaign.change()
        await campaign.pause(LONGEST)
        await asyncio.to_thread(containerd.kill)
        campaign.check()
        await campaign.pause(1.0)
        await asyncio.to_thread(containerd.start)
        campaign.check()
    await eventually(campaign.settled)
    campaign.check()
    assert campaign.lived, "no pod ever ran"
    assert rig.node is not None
    for pod in rig.node.pods():
        for status in pod.status.container_statuses or []:
            last = status.last_state.terminated if status.last_state is not None else None
            # A start that the kill interrupted failed, or containerd no longer knows what became of it.
            interrupted = last is not None and last.reason in ("StartError", "Unknown")
            assert status.restart_count == 0 or interrupted, pod
    for path in rig.manifests.glob("*.yaml"):
        path.unlink()
    await eventually(lambda: not campaign.processes())
    await eventually(lambda: not list((rig.root / "pods").iterdir()))
    client = RuntimeClient(str(containerd.socket))

    async def empty() -> bool:
        return not await client.list_pod_sandboxes() and not await client.list_containers()

    await eventually(empty)
    await client.close()
    assert not mounts_below(rig.root)
    assert not [group for group in groups_with(f"{private_cgroup_root}/kubepods/") if "/pod" in group]
