"""A pod's whole life, with one fault in it. An agent starts, runs two pods, one of them with a device,
removes unused images, evicts the other pod as memory runs short, stops, starts again, and removes the
first pod."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import cast

from engine.api.duration import Duration
from engine.api.errors import KubengineError
from engine.api.qos import SOURCE_ANNOTATION, SOURCE_API
from engine.containers.manager import ContainerGC
from engine.devices.checkpoint import decode
from engine.eviction.manager import EvictionManager
from engine.eviction.readings import NodeView
from engine.images.manager import ImageManager
from engine.runtime.objects.records import READY, RUNNING
from engine.testing.device_plugin import SampleDevicePlugin
from tests.laid_out_cgroups import laid_out
from tests.node.faults import KINDS
from tests.node.walking import Life
from tests.node_rig import Rig, container
from tests.waiting import eventually

GPU = "example.com/gpu"
MEMORY = 1 << 30


class LoneLife(Life):
    """Live as an agent that belongs to no cluster."""

    def __init__(self, directory: Path, method: str = "", at: int = 1, kind: str = KINDS[0]) -> None:
        super().__init__(directory, method, at, kind)
        # What hangs ends by the deadline; what doesn't must never meet it.
        deadline = 2.0 if kind == "hangs" else 60.0
        self.rig = Rig(
            directory,
            self.runtime.socket,
            runtime_request_timeout=deadline,
            eviction_hard={"memory.available": "100Mi"},
            image_minimum_gc_age=Duration(1e-9),
        )
        self.memory = directory / "cgroup/node/memory.current"
        self.rig.view = NodeView("/node", memory_capacity=MEMORY, mounts=laid_out(directory / "cgroup"))
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

    async def prepare(self) -> None:
        self.runtime.images.add("unused:1")
        await self.plugin.start()
        self.plugin.follow(self.plugin_dir)

    async def clear(self) -> None:
        await self.plugin.stop()

    def _write_manifests(self) -> None:
        """Write two pods. `b` has the source annotation of the API server, because a static pod is not
        evicted."""
        self.rig.write("a", {"containers": [container(resources={"limits": {GPU: 1}})]})
        self.rig.write("b-n1", {"containers": [container()]}, annotations={SOURCE_ANNOTATION: SOURCE_API})

    async def live(self) -> None:
        await self.start()
        await eventually(self.has_devices)
        self._write_manifests()
        await eventually(self.both_run)
        await self._look_after()
        before, held = self.running("a"), self.devices()
        assert len(held) == 1
        await self._evict_b()
        await self.stop()
        await self.start()
        await eventually(self.a_runs_alone)
        assert self.running("a") == before, "its container was started again"
        assert self.devices() == held, "it has another device"
        await eventually(lambda: self.kept_devices() == held)
        await eventually(self.well)
        for manifest in self.rig.manifests.glob("*.yaml"):
            manifest.unlink()
        await eventually(self.all_gone)
        await self.stop()
        assert not list(self.rig.root.rglob(".*.new"))

    async def _evict_b(self) -> None:
        assert self.rig.node is not None
        self.memory.write_text(str(MEMORY))
        await self._tried(cast("EvictionManager", self.rig.node.components["eviction"]).synchronize())
        await eventually(self.b_has_failed)
        self.memory.write_text("0")

    async def _look_after(self) -> None:
        assert self.rig.node is not None
        components = self.rig.node.components
        images = cast("ImageManager", components["images"])

        async def unused_is_gone() -> bool:
            await self._tried(images.delete_unused())
            return self.runtime.images.resolve("unused:1") is None

        await eventually(unused_is_gone)
        await self._tried(cast("ContainerGC", components["containers"]).garbage_collect())

    async def _tried(self, activity: Awaitable[object]) -> None:
        """Await what the agent repeats by itself, and record an error, which the fault may cause."""
        try:
            await activity
        except (KubengineError, OSError) as error:
            self.errors.append(error)

    def has_devices(self) -> bool:
        """Tell whether the node offers its devices; a pod that requests them earlier runs without them."""
        assert self.rig.node is not None
        amount = (self.rig.node.node_object().status.allocatable or {}).get(GPU)
        return amount is not None and amount.value == 2

    def devices(self) -> set[str]:
        """Return the devices of the containers that run."""
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
