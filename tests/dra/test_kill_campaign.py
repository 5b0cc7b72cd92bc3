"""Agents killed -9 at many points, with pods that come, go and share claims, while drivers die under them.

No device is prepared for two claims, no two calls for one claim cross, a container that runs has its claims
prepared, and at the end no driver holds a claim. `KUBENGINE_CLAIM_KILLS` says how many points (`make chaos`:
1,000), `KUBENGINE_CRASH_SEED` which.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.dra import checkpoint
from engine.runtime.hollow import HollowRuntime
from engine.testing.dra_driver import SampleDraDriver
from tests.cluster_rig import PODS, Cluster
from tests.devices.campaign import Mortal
from tests.dra_rig import DRIVER, ClaimsRig
from tests.waiting import eventually

POINTS = int(os.environ.get("KUBENGINE_CLAIM_KILLS", "12"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
LAST_OPERATION = 120
LIFETIME = 1.0
LONG_LIFE = 6
"""Each so many-th agent lives until a container runs, however slow the machine is."""
NEVER = 10**9
NAMES = "abcde"
CLAIMS = {"one": (DRIVER,), "two": ("other.example.com",), "both": (DRIVER, "other.example.com")}
RUNNING = 1


class Campaign:
    """Create and delete pods with claims, stop drivers, and check that each running container keeps its
    prepared devices."""

    def __init__(self, rig: ClaimsRig, drivers: list[SampleDraDriver], seed: int) -> None:
        self.rig, self.drivers = rig, drivers
        self.chance = random.Random(seed)
        self.users: dict[str, list[dict[str, Any]]] = {name: [] for name in CLAIMS}
        self.uids = {name: rig.claim(name, drivers=of)["metadata"]["uid"] for name, of in CLAIMS.items()}
        self.faults: list[str] = []
        self.most = 0

    async def change(self) -> None:
        """Create a pod with claims, or delete it if it exists."""
        name = self.chance.choice(NAMES)
        known = await self.rig.cluster.pod(name)
        if known is not None:
            grace = self.chance.choice((0, 1))
            self.rig.cluster.server.delete(f"{PODS}/{name}", grace=grace)
            return
        claims = self.chance.sample(sorted(CLAIMS), self.chance.choice((1, 1, 2)))
        policy = self.chance.choice(("Always", "Never"))
        asked = [{"name": claim} for claim in claims]
        pod = await self.rig.cluster.run(
            name,
            node="",
            restartPolicy=policy,
            containers=[{"name": "c", "image": "busybox:1", "resources": {"claims": asked}}],
            resourceClaims=[{"name": claim, "resourceClaimName": claim} for claim in claims],
        )
        for claim in claims:
            self.users[claim].append(pod)
            self.rig.reserve(claim, *self.users[claim])
        await self.rig.bind(name)

    async def upset(self) -> None:
        """Stop a driver with a chance of 40 %, and start it after a while with the claims that it had
        prepared."""
        if self.chance.random() > 0.4:
            return
        await asyncio.sleep(self.chance.random() * LIFETIME)
        driver = self.chance.choice(self.drivers)
        await driver.stop()
        await asyncio.sleep(self.chance.random() * LIFETIME / 2)
        await driver.start()

    def running(self) -> list[Any]:
        """List the containers that run."""
        containers = self.rig.hollow.service.records.containers.values()
        return [container for container in containers if container.state == RUNNING]

    async def until_one_runs(self) -> None:
        """Wait until a container runs, if any pod is there to have one."""
        await eventually(lambda: self.running() or not self.rig.cluster.server.list(PODS))

    def check(self) -> None:
        """Record a fault for each device of a running container that its driver has not prepared."""
        running = self.running()
        self.most = max(self.most, len(running))
        by_name = {driver.name: driver for driver in self.drivers}
        for container in running:
            for device in container.config.CDI_devices:
                driver, _, claim = device.name.partition("/device=")
                if self.uids[claim] not in by_name[driver].prepared:
                    self.faults.append(f"{device.name} is in a container that runs, and not prepared")
        self.faults += [fault for driver in self.drivers for fault in driver.wrong]

    async def end(self) -> None:
        """Delete every pod, and wait until the agent has unprepared every claim."""
        for pod in self.rig.cluster.server.list(PODS):
            self.rig.cluster.server.delete(f"{PODS}/{pod['metadata']['name']}", grace=0)
        await eventually(lambda: all(driver.prepared == {} for driver in self.drivers))
        path = self.rig.root / "dra_manager_state"
        await eventually(lambda: not path.exists() or checkpoint.decode(path.read_bytes()) == [])


@pytest.mark.timeout(0 if POINTS > 100 else 300)
async def test_no_kill_strands_a_claim_or_prepares_a_device_twice(cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="kk-") as short:
        directory = Path(short)
        (directory / "root").mkdir()
        joined: Any = SimpleNamespace(root=directory / "root")
        async with HollowRuntime(directory / "cri.sock") as hollow:
            rig = ClaimsRig(joined, cluster, hollow, directory / "d")
            drivers = [
                SampleDraDriver(directory / f"d/{n}", directory / "root/plugins_registry", name)
                for n, name in enumerate((DRIVER, "other.example.com"))
            ]
            for driver in drivers:
                driver.delay = 0.01
                await driver.start()
            campaign = Campaign(rig, drivers, SEED)
            forking = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("forking.py")),
                str(directory),
                str(hollow.socket),
                str(cluster.server.kubeconfig("system:node:n1")),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            agent = Mortal("agent", forking)
            try:
                for point in range(POINTS):
                    for _ in range(1 + campaign.chance.randrange(2)):
                        await campaign.change()
                    long = point % LONG_LIFE == LONG_LIFE - 1
                    await agent.start(NEVER if long else campaign.chance.randint(1, LAST_OPERATION))
                    upset = asyncio.create_task(campaign.upset())
                    if long:
                        await campaign.until_one_runs()
                    await agent.kill(after=LIFETIME)
                    await upset
                    campaign.check()
                    assert campaign.faults == []
                await agent.start(NEVER)
                await campaign.end()
                await agent.kill()
                campaign.check()
            finally:
                if agent._died is not None:
                    await agent.kill()
                forking.kill()
                await forking.wait()
                for driver in drivers:
                    await driver.stop()
        assert campaign.faults == []
        assert campaign.most > 0, "nothing ever ran"
