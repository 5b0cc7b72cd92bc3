"""The embedded runtime killed -9 at many points beside agent and plugin, under real containers with devices.

What runs is read from the processes themselves: no device is ever in two pods that run, whoever runs with
devices has its entry in the checkpoint, a runtime that came back knows every process, and in the end nothing
is left. `KUBENGINE_CRASH_POINTS` and `KUBENGINE_CRASH_SEED` as in `test_crash_campaign`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from engine.api.errors import KubengineError
from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.host.mountinfo import mounts_below
from engine.runtime.embedded import EmbeddedRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.devices.campaign import (
    DEVICES,
    LAST_OPERATION,
    LIFETIME,
    LONG_LIFE,
    NEVER,
    POINTS,
    SEED,
    VARIABLE,
    Manifests,
    Mortal,
    allocated_twice,
    lost_from_checkpoint,
    mortal,
    register_devices,
)
from tests.groups import groups_with
from tests.waiting import eventually

DISTURBED = 0.6
"""How often the plugin or the runtime is killed in an agent's life; mostly the runtime."""
ENDS_AT_TERM = "exec sleep 1000"
IGNORES_TERM = "trap '' TERM; while :; do sleep 1; done"


class Campaign:
    """Change pods of an embedded runtime below `directory`; find their processes by the variable `mark`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.chance = random.Random(SEED)
        self.manifests = Manifests(directory / "manifests", self.chance)
        self.mark = f"CAMPAIGN={secrets.token_hex(8)}".encode()
        self.faults: list[str] = []
        self.most_running = 0

    def change(self) -> None:
        name, _, value = self.mark.decode().partition("=")
        uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
        salt = {"name": "SALT", "value": str(self.chance.random())}
        command = ["/bin/sh", "-c", self.chance.choice((ENDS_AT_TERM, IGNORES_TERM))]
        self.manifests.change(
            {
                "image": "busybox",
                "imagePullPolicy": "Never",
                "command": command,
                "env": [{"name": name, "value": value}, uid, salt],
            }
        )

    async def disturb(self, plugin: Mortal, runtime: Mortal) -> None:
        if self.chance.random() > DISTURBED:
            return
        killed, number = (plugin, DEVICES) if self.chance.random() < 1 / 3 else (runtime, self._last())
        await killed.kill(after=self.chance.random() * LIFETIME)
        await asyncio.sleep(self.chance.random() * LIFETIME / 2)
        await killed.start(number)

    def _last(self) -> int:
        """Choose the number of the file operation at which a runtime kills itself."""
        return self.chance.choice((NEVER, self.chance.randint(1, LAST_OPERATION)))

    def processes(self) -> Iterator[Mapping[str, str]]:
        """Yield the environment of each process of a container."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdecimal() else []
                if self.mark in variables:
                    yield dict(pair.decode().partition("=")[::2] for pair in variables if pair)

    def running(self) -> dict[str, set[str]]:
        """Return the devices of running pods, by uid."""
        found: dict[str, set[str]] = {}
        for variables in self.processes():
            if VARIABLE in variables:
                found.setdefault(variables["POD_UID"], set()).update(variables[VARIABLE].split(","))
        return found

    def check(self) -> None:
        """Check the pods that two readings agree on: a pod may end while others are read."""
        first = self.running()
        self.most_running = max(self.most_running, len(first))
        still = self.running()
        both = {uid: held for uid, held in first.items() if still.get(uid) == held}
        if fault := allocated_twice(both) or lost_from_checkpoint(self.directory / "root", both):
            self.faults.append(fault)


async def test_no_crash_of_the_runtime_gives_a_device_twice_or_loses_what_runs(
    busybox_archive: Path, private_cgroup_root: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="kx-") as short:
        directory = Path(short)
        (directory / "root/device-plugins").mkdir(parents=True)
        socket, places = directory / "cri.sock", {"root": directory / "images", "state": directory / "state"}
        first = EmbeddedRuntime(socket=socket, **places)
        await first.start()
        await first.import_image(busybox_archive)
        await first.stop()
        campaign = Campaign(directory)
        async with (
            mortal("runtime", directory, socket) as runtime,
            mortal("agent", directory, socket, private_cgroup_root) as agent,
            mortal("plugin", directory, socket) as plugin,
        ):
            client = RuntimeClient(str(socket))
            await runtime.start(NEVER)
            await register_devices(agent, plugin, directory)
            for point in range(POINTS):
                for _ in range(campaign.chance.randrange(3)):
                    campaign.change()
                long = point % LONG_LIFE == LONG_LIFE - 1
                await agent.start(NEVER if long else campaign.chance.randint(1, LAST_OPERATION))
                disturbance = asyncio.create_task(campaign.disturb(plugin, runtime))
                if long:
                    await disturbance
                    await runtime.kill()
                    await runtime.start(NEVER)
                    await eventually(lambda: campaign.running() or not campaign.manifests.wanted())
                await agent.kill(after=LIFETIME)
                await disturbance
                campaign.check()
                if long:
                    await eventually(lambda: runtime_lists_all(client, campaign))
                assert not campaign.faults, f"at point {point}: {campaign.faults}"
            assert campaign.most_running, "no pod ever ran with a device"
            campaign.manifests.clear()
            await runtime.kill()
            await runtime.start(NEVER)
            await agent.start(NEVER)
            await eventually(lambda: not any(campaign.processes()))
            await eventually(lambda: not list((directory / "root/pods").iterdir()))
            await client.close()
        await EmbeddedRuntime(socket=socket, **places).purge()
        assert not any(path.exists() for path in places.values())
        assert not mounts_below(directory)
        assert not groups_with(f"{private_cgroup_root}/kubepods/besteffort/")
        assert not [group for group in groups_with(f"{private_cgroup_root}/kubepods/") if "/pod" in group]


async def runtime_lists_all(client: RuntimeClient, campaign: Campaign) -> bool:
    """Tell whether the running containers of the runtime belong to the pods that have processes."""
    try:
        listed = await client.list_containers()
    except KubengineError:
        return False
    running = [c.labels[labels.POD_UID] for c in listed if c.state == cri.CONTAINER_RUNNING]
    held = {(variables["POD_UID"], variables["SALT"]) for variables in campaign.processes()}
    return sorted(running) == sorted(uid for uid, _ in held)


pytestmark = [pytest.mark.root, pytest.mark.slow]
