"""What campaigns of crashes share: processes that die, manifests that change, what must hold of devices."""

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
    """One process of `forking.py` after another."""

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
        """Kill it, if it does not die by itself before; returns when it is dead."""
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
    """The pods that are wanted in `directory`: `container` is what each has beside its devices."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._directory = directory
        self._chance = chance
        directory.mkdir()

    def change(self, container: Mapping[str, Any], **annotations: str) -> None:
        """One manifest comes, goes, or is another pod from now on."""
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
        """Whether any pod asks for a device."""
        pods = [json.loads(path.read_text()) for path in self._directory.glob("*.json")]
        return any(pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in pods)

    def clear(self) -> None:
        for path in self._directory.glob("*.json"):
            path.unlink()


async def acquaint(agent: Mortal, plugin: Mortal, directory: Path) -> None:
    """Let the node hear of devices: pods that ask for what it never heard of go without, as a kubelet's."""
    await plugin.start(DEVICES)
    await agent.start(NEVER)
    await eventually(lambda: GPU in (_checkpoint(directory / "root").registered_devices or ()))
    await agent.kill()


def given_twice(running: Mapping[str, set[str]]) -> str:
    """What is wrong with the devices of the pods that run, by uid; empty if nothing is."""
    ids = [id for held in running.values() for id in held]
    return f"given twice: {running}" if len(ids) != len(set(ids)) else ""


def lost_from_checkpoint(root: Path, running: Mapping[str, set[str]]) -> str:
    """Whether a pod that runs has no entry for its devices."""
    kept: dict[str, set[str]] = {}
    for entry in _checkpoint(root).pod_device_entries or ():
        kept.setdefault(entry.pod_uid, set()).update(entry.devices)
    lost = {uid: ids for uid, ids in running.items() if not ids <= kept.get(uid, set())}
    return f"lost from the checkpoint: {lost}, it has {kept}" if lost else ""


def _checkpoint(root: Path) -> Checkpoint:
    path = root / "device-plugins/kubelet_internal_checkpoint"
    return decode(path.read_bytes()) if path.exists() else Checkpoint()
