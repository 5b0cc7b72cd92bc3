"""Provide the parts that crash campaigns share: processes that die, changing manifests, and checks of
devices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.devices.checkpoint import Checkpoint, decode
from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"
VARIABLE = "EXAMPLE_COM_GPU"
"""By which the sample plugin gives devices to a container."""
POINTS = int(os.environ.get("KUBENGINE_CRASH_POINTS", "100"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
DEVICES = 4
LAST_OPERATION = 150
LIFETIME = 0.6
LONG_LIFE = 10
"""Each so many-th agent lives until a pod runs with a device, however slow the machine is."""
NEVER = 10**9
NAMES = "abcdef"


class Mortal:
    """Start one process of `forking.py` after another, and kill each."""

    def __init__(self, role: str, forking: asyncio.subprocess.Process) -> None:
        self.role = role
        self._forking = forking
        self._pid = 0
        self._died: asyncio.Future[bytes] | None = None

    async def start(self, number: int) -> None:
        assert self._forking.stdin is not None
        self._forking.stdin.write(b"%d\n" % number)
        self._pid = int(await asyncio.wait_for(self._line(), PATIENCE))
        self._died = asyncio.ensure_future(self._line())

    async def kill(self, after: float = 0.0) -> None:
        """Kill the process, unless it dies by itself within `after` seconds, and wait until it is dead."""
        assert self._died is not None
        await asyncio.wait({self._died}, timeout=after)
        if not self._died.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        await asyncio.wait_for(asyncio.shield(self._died), PATIENCE)

    async def _line(self) -> bytes:
        assert self._forking.stdout is not None
        line = await self._forking.stdout.readline()
        assert line, f"no more {self.role}s"
        return line


@asynccontextmanager
async def mortal(role: str, directory: Path, socket: Path, cgroup: str = "") -> AsyncIterator[Mortal]:
    forking = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("forking.py")),
        role,
        str(directory),
        str(socket),
        cgroup,
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


class Manifests:
    """Write the wanted pods into `directory`, one container each, at random."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._directory = directory
        self._chance = chance
        directory.mkdir()

    def change(self, container: Mapping[str, Any], **annotations: str) -> None:
        """Add, remove or replace one manifest.

        `container` holds the container's fields besides its devices.
        """
        path = self._directory / f"{self._chance.choice(NAMES)}.json"
        if path.exists() and self._chance.random() < 0.4:
            path.unlink()
            return
        amounts = {"limits": {GPU: self._chance.choice((0, 1, 1, 2))}}
        named = {"name": "c", "imagePullPolicy": "IfNotPresent", "resources": amounts, **container}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [named]}
        metadata = {"name": f"pod-{path.stem}", "annotations": annotations}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(pod))
        unfinished.replace(path)

    def wanted(self) -> bool:
        """Tell whether any pod requests a device."""
        pods = [json.loads(path.read_text()) for path in self._directory.glob("*.json")]
        return any(pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in pods)

    def clear(self) -> None:
        for path in self._directory.glob("*.json"):
            path.unlink()


async def register_devices(agent: Mortal, plugin: Mortal, directory: Path) -> None:
    """Register the devices with the node once.

    A pod gets no device of a resource that the node has never seen.
    """
    await plugin.start(DEVICES)
    await agent.start(NEVER)
    await eventually(lambda: GPU in (_checkpoint(directory / "root").registered_devices or ()))
    await agent.kill()


def allocated_twice(running: Mapping[str, set[str]]) -> str:
    """Return a message if two running pods (uid → device ids) have the same device; empty if none do."""
    ids = [id for held in running.values() for id in held]
    return f"allocated twice: {running}" if len(ids) != len(set(ids)) else ""


def lost_from_checkpoint(root: Path, running: Mapping[str, set[str]]) -> str:
    """Return a message if the checkpoint lacks devices of a running pod (uid → device ids); empty if not."""
    kept: dict[str, set[str]] = {}
    for entry in _checkpoint(root).pod_device_entries or ():
        kept.setdefault(entry.pod_uid, set()).update(entry.devices)
    lost = {uid: ids for uid, ids in running.items() if not ids <= kept.get(uid, set())}
    return f"lost from the checkpoint: {lost}, it has {kept}" if lost else ""


def _checkpoint(root: Path) -> Checkpoint:
    path = root / "device-plugins/kubelet_internal_checkpoint"
    return decode(path.read_bytes()) if path.exists() else Checkpoint()
