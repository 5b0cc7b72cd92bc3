"""Agents killed -9 at many points, with device pods that come, go and are edited, while the plugin is killed
and the runtime goes away under them.

No device is ever in two containers that run, and whoever runs with devices has its entry in the checkpoint.
`KUBENGINE_CRASH_POINTS` says how many points (`make chaos`: 1,000), `KUBENGINE_CRASH_SEED` which.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from engine.devices.checkpoint import decode
from engine.runtime.hollow import PREFIX, HollowRuntime
from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"
POINTS = int(os.environ.get("KUBENGINE_CRASH_POINTS", "100"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
DEVICES = 4
LAST_OPERATION = 150
LIFETIME = 0.6
UPSETS = 0.3
"""How often the plugin is killed, or the runtime goes, during an agent's life."""
LONG_LIFE = 10
"""Each so many-th agent lives until a pod runs with a device, however slow the machine is."""
NEVER = 10**9
NAMES = "abcdef"
CONTAINER_RUNNING = 1


class Mortal:
    """One process of `forking.py` after another."""

    def __init__(self, role: str, forking: asyncio.subprocess.Process) -> None:
        self.role = role
        self._forking = forking
        self._pid = 0
        self._died: asyncio.Future[bytes] | None = None

    async def start(self, number: int) -> None:
        assert self._forking.stdin is not None
        self._forking.stdin.write(b"%d\n" % number)
        self._pid = int(await self._line())
        self._died = asyncio.ensure_future(self._line())

    async def kill(self, after: float = 0.0) -> None:
        """Kill it, if it does not die by itself before; returns when it is dead."""
        assert self._died is not None
        await asyncio.wait({self._died}, timeout=after)
        if not self._died.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        await self._died

    async def _line(self) -> bytes:
        assert self._forking.stdout is not None
        line = await asyncio.wait_for(self._forking.stdout.readline(), PATIENCE)
        assert line, f"no more {self.role}s"
        return line


@asynccontextmanager
async def mortal(role: str, directory: Path, socket: Path) -> AsyncIterator[Mortal]:
    forking = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("forking.py")),
        role,
        str(directory),
        str(socket),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    process = Mortal(role, forking)
    try:
        yield process
    finally:
        if process._died is not None:
            await process.kill()
        forking.kill()
        await forking.wait()


class Campaign:
    """Manifests, and what a runtime runs of them."""

    def __init__(self, directory: Path, runtime: HollowRuntime, seed: int) -> None:
        self.directory = directory
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.runtime = runtime
        self.chance = random.Random(seed)
        self.faults: list[str] = []
        self.most = 0
        start = runtime.backend.start_container

        async def checked(container: object) -> object:
            answer = await start(container)
            self.check_devices()
            return answer

        runtime.backend.start_container = checked  # type: ignore[method-assign]

    def change(self) -> None:
        """One manifest comes, goes, or is another pod from now on."""
        path = self.manifests / f"{self.chance.choice(NAMES)}.json"
        if path.exists() and self.chance.random() < 0.4:
            path.unlink()
            return
        amounts = {"limits": {GPU: self.chance.choice((0, 1, 1, 2))}}
        image = f"busybox:{self.chance.randrange(10**6)}"
        container = {"name": "c", "image": image, "imagePullPolicy": "IfNotPresent", "resources": amounts}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
        obeys = {f"{PREFIX}stop-after": self.chance.choice(("0s", "100ms", "500ms"))}
        metadata = {"name": f"pod-{path.stem}", "annotations": obeys}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(pod))
        unfinished.replace(path)

    async def upset(self, plugin: Mortal) -> None:
        """At some points the plugin is killed, or the runtime goes, and comes back after a while."""
        if self.chance.random() > UPSETS:
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

    def wanted(self) -> bool:
        """Whether any pod asks for a device."""
        pods = [json.loads(path.read_text()) for path in self.manifests.glob("*.json")]
        return any(pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in pods)

    def running(self) -> dict[str, set[str]]:
        """Devices of the containers that run, by the pod's uid."""
        found: dict[str, set[str]] = {}
        for container in self.runtime.service.records.containers.values():
            ids = {e.key: e.value.decode() for e in container.config.envs}.get("EXAMPLE_COM_GPU")
            if ids and container.state == CONTAINER_RUNNING:
                found.setdefault(container.sandbox.config.metadata.uid, set()).update(ids.split(","))
        return found

    def check_devices(self) -> None:
        running = self.running()
        ids = [id for held in running.values() for id in held]
        self.most = max(self.most, len(ids))
        if len(ids) != len(set(ids)):
            self.faults.append(f"given twice: {running}")

    def check_checkpoint(self) -> None:
        path = self.directory / "root/device-plugins/kubelet_internal_checkpoint"
        running = self.running()
        kept: dict[str, set[str]] = {}
        if path.exists():
            for entry in decode(path.read_bytes()).pod_device_entries or ():
                kept.setdefault(entry.pod_uid, set()).update(entry.devices)
        lost = {uid: ids for uid, ids in running.items() if not ids <= kept.get(uid, set())}
        if lost:
            self.faults.append(f"lost from the checkpoint: {lost}, it has {kept}")


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
            await plugin.start(DEVICES)
            for point in range(POINTS):
                for _ in range(campaign.chance.randrange(3)):
                    campaign.change()
                last = campaign.chance.randint(1, LAST_OPERATION)
                long = point % LONG_LIFE == LONG_LIFE - 1
                await agent.start(NEVER if long else last)
                upset = asyncio.create_task(campaign.upset(plugin))
                if long:
                    await eventually(lambda: campaign.running() or not campaign.wanted())
                await agent.kill(after=LIFETIME)
                await upset
                campaign.check_devices()
                campaign.check_checkpoint()
                assert not campaign.faults, f"at point {point}: {campaign.faults}"
            assert campaign.most, "no pod ever ran with a device"
