"""Run CPU managers of eight CPUs on one directory, and read the events and decisions that they record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.api import cpu_set
from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.documents import convert
from engine.api.events import EventRecorder
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.cpumanager.manager import FILE_NAME, CpuManager, CpuReaders
from engine.cpumanager.moving import RunningContainer
from engine.cpumanager.topology import CpuTopology, Processor
from engine.topologymanager.policy import Hint, Numa
from tests.contexts import node_context

PROCESSORS = [Processor(cpu, cpu % 4, 0, 0, 0) for cpu in range(8)]
"""Four cores of two threads: 0 and 4, 1 and 5, …"""


def pinned_pod(uid: str, cpus: int, **spec: Any) -> Pod:
    """Build a Guaranteed pod of one container c with `cpus` exclusive CPUs."""
    amounts = {"cpu": str(cpus), "memory": "64Mi"}
    container = {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    meta = {"name": uid, "namespace": "d", "uid": uid}
    return convert({"metadata": meta, "spec": {"containers": [container], **spec}}, Pod, "pod")


def anywhere(pod: Pod, container: Container) -> Hint:
    return Hint(None, preferred=False)


@dataclass
class Rig:
    """Run one agent after another; `recorder` and `decisions` are the last agent's."""

    root: Path
    config: dict[str, Any] = field(
        default_factory=lambda: {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    )
    online: int = 0xFF
    running: list[RunningContainer] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.root / FILE_NAME

    async def _move(self, container: str, cpus: str) -> None:
        self.moved[container] = cpus

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[CpuManager]:
        self.recorder, self.decisions = EventRecorder(lambda: 0.0), Decisions(lambda: 0.0)
        reserved = cpu_set.parse(self.config.get("reservedSystemCPUs", "0")).bit_count()
        topology = CpuTopology([one for one in PROCESSORS if self.online >> one.cpu & 1])
        manager = CpuManager(
            node_context(
                convert(dict(self.config), KubeletConfiguration, "config"),
                root=self.root,
                recorder=self.recorder,
                decisions=self.decisions,
            ),
            readers=CpuReaders(lambda: topology, lambda: topology.cpus, lambda: 0),
            numa=Numa(),
            reserved=Quantity.parse(str(reserved)),
            running=lambda: self.running,
            move=self._move,
        )
        await manager.start()
        try:
            yield manager
        finally:
            await manager.stop()

    def start_pod(self, manager: CpuManager, pod: Pod) -> None:
        """Admit a pod, and list its container as running from now on."""
        assert manager.concerns(pod)
        manager.allocate(pod, pod.spec.containers[0], anywhere(pod, pod.spec.containers[0]))
        self.running.append(RunningContainer(pod.uid, "c", f"id-of-{pod.uid}"))

    def held(self, manager: CpuManager, uid: str) -> str | None:
        assert manager.policy is not None
        cpus = manager.policy.state.held(uid, "c")
        return None if cpus is None else cpu_set.text(cpus)

    def messages(self, reason: str) -> list[str]:
        """Return the messages of the events with this reason."""
        return [event.message for event in self.recorder if event.reason == reason]


async def settled(manager: CpuManager) -> None:
    await asyncio.wait_for(manager.flush(), 10)
