"""A pod's whole life, walked through with one fault in it.

An agent starts, runs two pods, one of them with a device, removes the images that nobody uses, evicts the
other pod as memory runs short, goes and comes back, and lets the first go.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, cast

from engine.api.duration import Duration
from engine.api.errors import KubengineError
from engine.api.qos import SOURCE_ANNOTATION, SOURCE_API
from engine.containers.manager import ContainerGC
from engine.devices.checkpoint import decode
from engine.eviction.manager import EvictionManager
from engine.eviction.readings import NodeView
from engine.images.manager import ImageManager
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.records import READY, RUNNING
from engine.runtime.server import CriServer
from engine.testing.device_plugin import SampleDevicePlugin
from tests.node_rig import Rig, container
from tests.waiting import eventually

from .faults import KINDS, FailingService, FileFault, current

GPU = "example.com/gpu"
MEMORY = 1 << 30
AT_ONCE = 20


class Life:
    """One agent after another on a hollow runtime of their own, from first start to last end."""

    def __init__(self, directory: Path, method: str = "", at: int = 1, kind: str = KINDS[0]) -> None:
        self.runtime = HollowRuntime(directory / "cri.sock")
        self.calls: dict[str, int] = {}

        def failing(service: object) -> FailingService:
            return FailingService(service, self.calls, method, at, kind)

        services = {"RuntimeService": self.runtime.service, "ImageService": ImageService(self.runtime.images)}
        self.runtime._server = CriServer(self.runtime.socket, {k: failing(s) for k, s in services.items()})
        # What hangs ends by the deadline; what doesn't must never meet it.
        deadline = 2.0 if kind == "hangs" else 60.0
        self.rig = Rig(
            directory,
            self.runtime.socket,
            runtime_request_timeout=deadline,
            eviction_hard={"memory.available": "100Mi"},
            image_minimum_gc_age=Duration(1e-9),
        )
        self.errors: list[Exception] = []
        self.memory = directory / "cgroup/node/memory.current"
        self.rig.view = NodeView("/node", memory_capacity=MEMORY, mount=directory / "cgroup")
        self.memory.parent.mkdir(parents=True)
        for name, text in {
            "memory.max": "max",
            "memory.stat": "inactive_file 0\n",
            "pids.current": "1",
        }.items():
            self.memory.with_name(name).write_text(text)
        self.memory.write_text("0")
        self.plugin_dir = self.rig.root / "device-plugins"
        self.plugin = SampleDevicePlugin(GPU, self.plugin_dir / "gpu.sock", count=2)

    async def whole(self, fault: FileFault | None = None) -> None:
        self.runtime.images.add("unused:1")
        await self.plugin.start()
        self.plugin.follow(self.plugin_dir)
        async with self.runtime:
            token = current.set(fault)
            try:
                await self._live()
            finally:
                if self.rig.node is not None:
                    await self.rig.node.stop()
                current.reset(token)
                await self.plugin.stop()

    def _write_manifests(self) -> None:
        """Only a pod that is not static is evicted."""
        self.rig.write("a", {"containers": [container(resources={"limits": {GPU: 1}})]})
        self.rig.write("b-n1", {"containers": [container()]}, annotations={SOURCE_ANNOTATION: SOURCE_API})

    async def _live(self) -> None:
        await self._start()
        await eventually(self.has_devices)
        self._write_manifests()
        await eventually(self.both_run)
        await self._look_after()
        before, held = self.running("a"), self.devices()
        assert len(held) == 1
        await self._evict_b()
        await self._stop()
        await self._start()
        await eventually(self.a_runs_alone)
        assert self.running("a") == before, "its container was started again"
        assert self.devices() == held, "it has another device"
        await eventually(lambda: self.kept_devices() == held)
        await eventually(self.well)
        for manifest in self.rig.manifests.glob("*.yaml"):
            manifest.unlink()
        await eventually(self.all_gone)
        await self._stop()
        assert not list(self.rig.root.rglob(".*.new"))

    async def _evict_b(self) -> None:
        assert self.rig.node is not None
        self.memory.write_text(str(MEMORY))
        try:
            await cast(EvictionManager, self.rig.node.rooms["eviction"]).synchronize()
        except (KubengineError, OSError) as error:
            self.errors.append(error)
        await eventually(self.b_has_failed)
        self.memory.write_text("0")

    async def _start(self) -> None:
        try:
            await self.rig.start()
        except (KubengineError, OSError) as error:
            self.errors.append(error)
            await self._stop()
            await self.rig.start()

    async def _stop(self) -> None:
        try:
            await self.rig.stop()
        except (KubengineError, OSError) as error:
            self.errors.append(error)

    async def _look_after(self) -> None:
        assert self.rig.node is not None
        rooms = self.rig.node.rooms
        images = cast(ImageManager, rooms["images"])

        async def unused_is_gone() -> bool:
            await images.delete_unused()
            return self.runtime.images.resolve("unused:1") is None

        await eventually(unused_is_gone)
        await cast(ContainerGC, rooms["containers"]).garbage_collect()

    def has_devices(self) -> bool:
        """A pod that asks for what no plugin has yet runs without."""
        assert self.rig.node is not None
        amount = (self.rig.node.node_object().status.allocatable or {}).get(GPU)
        return amount is not None and amount.value == 2

    def devices(self) -> set[str]:
        """What the containers that run have."""
        records = self.runtime.service.records.containers.values()
        variables = [e for c in records if c.state == RUNNING for e in c.config.envs]
        return {e.value.decode() for e in variables if e.key == "EXAMPLE_COM_GPU"}

    def kept_devices(self) -> set[str]:
        entries = (
            decode((self.plugin_dir / "kubelet_internal_checkpoint").read_bytes()).pod_device_entries or ()
        )
        return {id for entry in entries for id in entry.devices}

    def running(self, name: str) -> list[str]:
        records = self.runtime.service.records.containers.values()
        mine = [c for c in records if c.sandbox.config.metadata.name == f"{name}-n1"]
        return [c.id for c in mine if c.state == RUNNING]

    def both_run(self) -> bool:
        sandboxes = [s for s in self.runtime.service.records.sandboxes.values() if s.state == READY]
        return len(sandboxes) == 2 and all(
            self.rig.phase(name) == "Running" and len(self.running(name)) == 1 for name in "ab"
        )

    def b_has_failed(self) -> bool:
        return self.rig.phase("b") == "Failed" and not self.running("b")

    def a_runs_alone(self) -> bool:
        return self.rig.phase("a") == "Running" and self.b_has_failed()

    def well(self) -> bool:
        assert self.rig.node is not None
        return not [error for _, error in self.rig.node.healthz() if error]

    def all_gone(self) -> bool:
        assert self.rig.node is not None
        records = self.runtime.service.records
        ready = [s for s in records.sandboxes.values() if s.state == READY]
        return not self.rig.node.pods() and not ready and not any(map(self.running, "ab"))


async def walk(lives: Iterable[Coroutine[Any, Any, str]]) -> None:
    """Live them all, some at once; fails saying which went wrong and how."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(life: Coroutine[Any, Any, str]) -> str:
        async with room:
            return await life

    tasks = [asyncio.create_task(one(life)) for life in lives]
    before = asyncio.all_tasks() - set(tasks)
    wrong = [text for text in await asyncio.gather(*tasks) if text]
    assert not wrong, f"{len(wrong)} of {len(tasks)}:\n" + "\n".join(wrong)
    gc.collect()
    await eventually(lambda: asyncio.all_tasks() <= before)


async def with_file_fault(fault: FileFault) -> str:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = Life(Path(short))
        try:
            await life.whole(fault)
            text = unnamed(life, "/")
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        held = held_open(short)
    where = fault.places[fault.at - 1] if fault.met else "nowhere"
    text = "; ".join(filter(None, (text, held)))
    return f"operation {fault.at} fails with {fault.error} ({where}): {text}" if text else ""


async def with_call_fault(method: str, at: int, kind: str) -> str:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = Life(Path(short), method, at, kind)
        try:
            await life.whole()
            text = unnamed(life, "CRI ")
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        held = held_open(short)
    text = "; ".join(filter(None, (text, held)))
    return f"call {at} of {method} {kind}: {text}" if text else ""


def unnamed(life: Life, thing: str) -> str:
    return "; ".join(f"does not name it: {error}" for error in life.errors if thing not in str(error))


def held_open(directory: str) -> str:
    """Descriptors of what is below the directory."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = str(Path(entry.path).readlink())
        except OSError:
            continue
        if target.startswith(directory):
            found.append(target)
    return f"still open: {found}" if found else ""
