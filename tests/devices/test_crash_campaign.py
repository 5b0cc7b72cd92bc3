"""Agents killed -9 at many points, with device pods that come, go and are edited, while the plugin is killed
and the runtime goes away under them.

No device is ever in two containers that run, and whoever runs with devices has its entry in the checkpoint.
`KUBENGINE_CRASH_POINTS` says how many points (`make chaos`: 1,000), `KUBENGINE_CRASH_SEED` which.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from engine.runtime.hollow import PREFIX, HollowRuntime
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
from tests.waiting import eventually

DISTURBED = 0.3
"""How often the plugin is killed, or the runtime goes, during an agent's life."""
CONTAINER_RUNNING = 1


class Campaign:
    """Change manifests, upset plugin and runtime, and check the devices of running containers."""

    def __init__(self, directory: Path, runtime: HollowRuntime, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.manifests = Manifests(directory / "manifests", self.chance)
        self.runtime = runtime
        self.faults: list[str] = []
        self.most_running = 0
        start = runtime.backend.start_container

        async def checked(container: object) -> object:
            answer = await start(container)
            self.check_devices()
            return answer

        runtime.backend.start_container = checked  # type: ignore[method-assign]

    def change(self) -> None:
        image = f"busybox:{self.chance.randrange(10**6)}"
        stop_after = self.chance.choice(("0s", "100ms", "500ms"))
        self.manifests.change({"image": image}, **{f"{PREFIX}stop-after": stop_after})

    async def disturb(self, plugin: Mortal) -> None:
        """Kill the plugin or stop the runtime at some points, and start it again after a while."""
        if self.chance.random() > DISTURBED:
            return
        await asyncio.sleep(self.chance.random() * LIFETIME)
        away = self.chance.random() * LIFETIME / 2
        if self.chance.random() < 0.5:
            await plugin.kill()
            await asyncio.sleep(away)
            await plugin.start(DEVICES)
        else:
            await self.runtime.stop()
            await asyncio.sleep(away)
            await self.runtime.start()

    def running(self) -> dict[str, set[str]]:
        """Return the devices of running containers, by the pod's uid."""
        found: dict[str, set[str]] = {}
        for container in self.runtime.service.records.containers.values():
            ids = {e.key: e.value.decode() for e in container.config.envs}.get(VARIABLE)
            if ids and container.state == CONTAINER_RUNNING:
                found.setdefault(container.sandbox.config.metadata.uid, set()).update(ids.split(","))
        return found

    def check_devices(self) -> None:
        running = self.running()
        self.most_running = max(self.most_running, len(running))
        if fault := allocated_twice(running):
            self.faults.append(fault)

    def check_checkpoint(self) -> None:
        if fault := lost_from_checkpoint(self.directory / "root", self.running()):
            self.faults.append(fault)


async def test_no_crash_gives_a_device_twice_or_loses_one():
    with tempfile.TemporaryDirectory(prefix="kx-") as short:
        directory = Path(short)
        (directory / "root/device-plugins").mkdir(parents=True)
        async with (
            HollowRuntime(directory / "cri.sock") as runtime,
            mortal("agent", directory, runtime.socket) as agent,
            mortal("plugin", directory, runtime.socket) as plugin,
        ):
            campaign = Campaign(directory, runtime, SEED)
            await register_devices(agent, plugin, directory)
            for point in range(POINTS):
                for _ in range(campaign.chance.randrange(3)):
                    campaign.change()
                last = campaign.chance.randint(1, LAST_OPERATION)
                long = point % LONG_LIFE == LONG_LIFE - 1
                await agent.start(NEVER if long else last)
                disturbance = asyncio.create_task(campaign.disturb(plugin))
                if long:
                    await eventually(lambda: campaign.running() or not campaign.manifests.wanted())
                await agent.kill(after=LIFETIME)
                await disturbance
                campaign.check_devices()
                campaign.check_checkpoint()
                assert not campaign.faults, f"at point {point}: {campaign.faults}"
            assert campaign.most_running, "no pod ever ran with a device"
