"""Devices of whole pods, over histories of plugins and pods, against recorded answers of kubelet v1.36.

The kubelet takes devices of one class in the order of a map. The recorded one took them in the order of their
ids, so its choice is one that any kubelet may make, and each device can be compared. It forgot a rejected pod
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.documents import as_written
from engine.api.kubengine_config import DevicesSection
from engine.api.pod import Pod
from engine.devices.allocation import Allocator, TopologyError
from engine.devices.endpoint import DevicePluginDeadlines, Endpoint
from engine.devices.selection import SelectionError
from engine.devices.state import DeviceState
from engine.host.state_file import no_fault
from engine.topologymanager.alignment_metrics import AlignmentTally
from engine.topologymanager.policy import Numa, TopologyPolicy
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from tests.contexts import NothingKept, node_context


class Plugin(Endpoint):
    """Stand in for a connected plugin: grant every device, and prefer the last ids in one of several ways."""

    def __init__(self, resource: str, calls: list[str], *, prefers: bool) -> None:
        super().__init__(resource, Path("/plugin.sock"), DevicePluginDeadlines())
        self.options = wire.DevicePluginOptions(get_preferred_allocation_available=prefers)
        self.mode = "none"
        self._calls = calls

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        offered, included = sorted(available), sorted(must_include)
        self._calls.append(f"prefer {self.resource} {','.join(offered)}|{','.join(included)}|{size}")
        if self.mode == "all":
            return offered
        if self.mode in ("none", "empty"):
            return []
        rest = [id for id in reversed(offered) if id not in included]
        ids = [*included, *rest[: max(0, size - len(included))]]
        if self.mode == "short":
            return ids[: (len(ids) + 1) // 2]
        return ["zz-unknown", *ids, *ids] if self.mode == "foreign" else ids

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[wire.ContainerAllocateResponse]:
        self._calls += [f"allocate {self.resource} {','.join(sorted(ids))}" for ids in containers]
        return [wire.ContainerAllocateResponse() for _ in containers]


class Machine:
    """Replay a history: plugins come, list devices and go; pods are admitted and removed; time passes."""

    def __init__(self, history: dict[str, Any]) -> None:
        numa = Numa(tuple(history["numa"]))
        self.state = DeviceState()
        self.now = 0.0
        self.plugins: dict[str, Plugin] = {}
        self.calls: list[str] = []
        self.allocator = Allocator(
            node_context(KubeletConfiguration(), devices=DevicesSection(admission_retry=0)),
            self.state,
            NothingKept(),  # type: ignore[arg-type]
            endpoints=self.plugins,
            policy=TopologyPolicy(history["policy"], history["scope"], numa),
            is_running=lambda _uid, _container: False,
            fault=no_fault,
        )
        self._steps: dict[str, Callable[[dict[str, Any]], None]] = {
            "connect": self._connect,
            "mode": self._mode,
            "list": self._list,
            "disconnect": self._disconnect,
            "remove": lambda step: self.state.forget(step["uid"]) and None,
            "advance": self._advance,
        }

    async def step(self, step: dict[str, Any]) -> dict[str, Any]:
        self.calls.clear()
        if step["do"] == "admit":
            return await self._admit(as_written(step["pod"], Pod, "pod"))
        if step["do"] == "capacity":
            capacity, allocatable, removed = self.state.capacity(self.now)
            return {"capacity": capacity, "allocatable": allocatable, "removed": removed}
        self._steps[step["do"]](step)
        return {}

    async def _admit(self, pod: Pod) -> dict[str, Any]:
        try:
            await self.allocator.pod(pod, AlignmentTally())
        except (SelectionError, TopologyError) as error:
            return {"error": str(error)}
        held = {
            f"{entry.container_name} {entry.resource_name}": sorted(entry.devices)
            for entry in self.state.entries_of(pod.uid)
        }
        return {"held": held, "calls": sorted(self.calls)}

    def _connect(self, step: dict[str, Any]) -> None:
        self.plugins[step["res"]] = Plugin(step["res"], self.calls, prefers=step["pref"])
        self.state.connect(step["res"], self.now)

    def _mode(self, step: dict[str, Any]) -> None:
        self.plugins[step["res"]].mode = step["prefers"]

    def _list(self, step: dict[str, Any]) -> None:
        message = wire.ListAndWatchResponse()
        for device in step["devices"]:
            health = "Healthy" if device["healthy"] else "Unhealthy"
            listed = message.devices.add(ID=device["id"], health=health)
            if device["nodes"] is not None:
                listed.topology.SetInParent()
                listed.topology.nodes.extend([wire.NUMANode(ID=node) for node in device["nodes"]])
        self.state.receive(step["res"], message.SerializeToString())

    def _disconnect(self, step: dict[str, Any]) -> None:
        del self.plugins[step["res"]]
        self.state.disconnect(step["res"], self.now)

    def _advance(self, step: dict[str, Any]) -> None:
        self.now += step["seconds"]


async def test_devices_of_whole_pods(answers):
    admitted = 0
    for number, case in enumerate(answers("device-histories")):
        machine = Machine(case["in"])
        for at, (step, wanted) in enumerate(zip(case["in"]["steps"], case["out"], strict=True)):
            got = await machine.step(step)
            assert got == wanted, (number, at, step)
            admitted += "held" in wanted
    assert admitted
