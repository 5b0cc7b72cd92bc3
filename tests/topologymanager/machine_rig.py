"""Run agents one after another on a made-up machine: CPU and memory managers on disk, and a runtime.

`World.check` compares the managers, their files and the runtime with the rules: no CPU belongs to two
containers or is exclusive and shared, and no memory is reserved twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from engine.api import cpu_set
from engine.api.config import KubeletConfiguration, MemoryReservation
from engine.api.documents import convert
from engine.api.errors import Refused
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.cpumanager import checkpoint as cpu_checkpoint
from engine.cpumanager.manager import FILE_NAME as CPU_FILE
from engine.cpumanager.manager import CpuManager, CpuReaders
from engine.cpumanager.moving import RunningContainer
from engine.cpumanager.resizing import Align
from engine.cpumanager.topology import CpuTopology, Processor
from engine.devices.allocation import Allocator, TopologyError
from engine.devices.state import DeviceState
from engine.host.state_file import no_fault
from engine.memorymanager import checkpoint as memory_checkpoint
from engine.memorymanager.manager import FILE_NAME as MEMORY_FILE
from engine.memorymanager.manager import MemoryManager
from engine.memorymanager.state import Block, NodeMemory
from engine.topologymanager.alignment_metrics import AlignmentTally
from engine.topologymanager.policy import Hint, Hints, Numa, TopologyPolicy
from engine.topologymanager.provider import AllocationError, CannotResize
from tests.contexts import NothingKept, node_context

MIB = 1 << 20
T = TypeVar("T")


def pod_of(uid: str, containers: list[tuple[str, int, int]]) -> Pod:
    """Build a Guaranteed pod of containers (kind, CPUs, MiB); 0 CPUs stand for a quarter of one."""
    init: list[dict[str, Any]] = []
    main: list[dict[str, Any]] = []
    for number, (kind, count, mebibytes) in enumerate(containers):
        amounts = {"cpu": str(count) if count else "250m", "memory": f"{mebibytes}Mi"}
        resources = {"limits": amounts, "requests": amounts}
        one: dict[str, Any] = {"name": f"c{number}", "image": "x", "resources": resources}
        if kind == "sidecar":
            one["restartPolicy"] = "Always"
        (main if kind == "main" else init).append(one)
    spec = {"initContainers": init, "containers": main}
    return convert({"metadata": {"name": uid, "namespace": "d", "uid": uid}, "spec": spec}, Pod, "pod")


def runs_on(pod: Pod, container: Container) -> bool:
    """Tell whether a container runs as long as its pod: it is a main container or a sidecar."""
    return container not in pod.init_containers or container.is_sidecar


class Crash(BaseException):
    """Kill the agent: not even `except Exception` in it may catch this."""


@dataclass
class World:
    """Hold a machine and its runtime, which outlive the agents.

    `cpusets` are the CPUs that the runtime was last given for each container. The agent dies at the
    `crash_at`-th next step of the state files, and the disk fails at the `fail_at`-th; 0 is never.
    """

    root: Path
    config: KubeletConfiguration
    every: list[Processor]
    memory: list[NodeMemory]
    offline: set[int] = field(default_factory=set)
    pods: dict[str, Pod] = field(default_factory=dict)
    cpusets: dict[str, str] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    """The CPUs that containers started with and have kept."""
    crash_at: int = 0
    fail_at: int = 0
    steps: int = 0
    crashes: int = 0
    """How often the agent died."""

    def __post_init__(self) -> None:
        self.numa = Numa(tuple(one.node for one in self.memory))
        self.unclaimed = {one.node: one.memory for one in self.memory}

    @property
    def topology(self) -> CpuTopology:
        return CpuTopology([one for one in self.every if one.cpu not in self.offline])

    def running(self) -> list[RunningContainer]:
        return [
            RunningContainer(uid, one.name, f"{uid}/{one.name}")
            for uid, pod in self.pods.items()
            for one in pod.all_containers
            if runs_on(pod, one)
        ]

    async def move(self, container: str, cpus: str) -> None:
        self.cpusets[container] = cpus

    def step(self, name: str) -> None:
        """Count a step of a state file, and fail or crash if it is due; runs in the thread that writes the
        file."""
        if self._dead.is_set():
            raise Crash(name)
        self.steps += 1
        if self.fail_at:
            self.fail_at -= 1
            if not self.fail_at:
                raise Refused("the disk fails", subject=name)
        if self.crash_at:
            self.crash_at -= 1
            if not self.crash_at:
                self._loop.call_soon_threadsafe(self._dead.set)
                raise Crash(name)

    async def unless_crashed(self, work: Awaitable[T]) -> T:
        """Return the work's result. Raises `Crash` if the agent dies first."""
        doing = asyncio.ensure_future(work)
        dying = asyncio.ensure_future(self._dead.wait())
        await asyncio.wait({doing, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if not self._dead.is_set():
            return await doing
        doing.cancel()
        await asyncio.wait({doing})
        raise Crash

    async def start(self) -> None:
        """Start an agent, again after each death. Raises `InvalidInput` if the machine cannot be used."""
        while True:
            self._loop, self._dead = asyncio.get_running_loop(), asyncio.Event()
            self._make()
            try:
                await self.unless_crashed(self._begin())
            except Crash:
                await self._end_tasks()
            except Refused:
                await self.end()
            else:
                return

    def _make(self) -> None:
        context = node_context(self.config, root=self.root, clock=lambda: 0.0)
        common: dict[str, Any] = {"numa": self.numa, "fault": self.step}
        reservations = self.config.reserved_memory or []
        held_back = sum(one.limits["memory"].value for one in reservations if one.limits)
        self.cpus = CpuManager(
            context,
            readers=CpuReaders(lambda: self.topology, lambda: self.topology.cpus, lambda: 0),
            reserved=Quantity.parse("1"),
            running=self.running,
            move=self.move,
            **common,
        )
        self.memory_manager = MemoryManager(
            context,
            machine=lambda: self.memory,
            reserved={"memory": Quantity.from_value(held_back)},
            **common,
        )
        self.topology_policy = TopologyPolicy.from_config(
            self.config.topology_manager_policy,
            self.config.topology_manager_scope,
            self.config.topology_manager_policy_options,
            self.numa,
        )
        self._allocator = Allocator(
            node_context(registry=context.registry, decisions=context.decisions),
            DeviceState(),
            NothingKept(),  # type: ignore[arg-type]
            endpoints={},
            policy=self.topology_policy,
            is_running=lambda uid, container: False,
            fault=no_fault,
            providers=[self.cpus, self.memory_manager],
        )

    async def _begin(self) -> None:
        await self.cpus.start()
        await self.memory_manager.start()
        for pod in self.pods.values():
            self.cpus.adopted(pod, self._place)
            self.memory_manager.adopted(pod, self._place)
        self.cpus.collect(self.pods)
        self.memory_manager.collect(self.pods)
        await self.flush()

    def _place(self, pod: Pod, container: Container) -> Hint:
        providers = (self.cpus, self.memory_manager)
        decision = self.topology_policy.decide([one.container_hints(pod, container) for one in providers])
        return decision.hint if decision.admit else Hint(None, preferred=False)

    async def flush(self) -> None:
        """Wait until everything is on disk, and retry when the disk fails."""
        while True:
            with suppress(Refused):
                await self.cpus.flush()
                await self.memory_manager.flush()
                return

    async def end(self) -> None:
        """Stop the agent; it may die of that."""
        try:
            await self.unless_crashed(self._stop())
        except Crash:
            await self._end_tasks()

    async def _stop(self) -> None:
        for manager in (self.cpus, self.memory_manager):
            with suppress(Refused):
                await manager.stop()

    async def _end_tasks(self) -> None:
        """End the tasks of a dead agent; its files cannot be written any longer."""
        self.crashes += 1
        for task in (self.cpus._mover, self.cpus._file._writer, self.memory_manager._file._writer):
            await task.stop()

    async def do(self, work: Awaitable[None]) -> bool:
        """Run the agent's work, and wait until everything is on disk.

        If the agent dies, starts another and returns False.
        """
        try:
            await self.unless_crashed(work)
            await self.unless_crashed(self.flush())
        except Crash:
            await self._end_tasks()
            await self.start()
            return False
        return True

    async def admit(self, pod: Pod) -> None:
        """Admit and run a pod if it fits; try again after each death of the agent."""
        admitted = False

        async def judge() -> None:
            nonlocal admitted
            try:
                await self._allocator.pod(pod, AlignmentTally())
                admitted = True
            except (AllocationError, TopologyError, Refused):
                admitted = False

        while not await self.do(judge()):
            pass
        if admitted:
            self.pods[pod.uid] = pod
            for container in pod.all_containers:
                name = f"{pod.uid}/{container.name}"
                self.cpusets[name] = self.cpus.cpuset(pod, container.name)
                if self.cpus.policy is not None and self.cpus.policy.state.held(pod.uid, container.name):
                    self.started[name] = cpu_set.parse(self.cpusets[name])
                self.memory_manager.container_started(pod, container)
            await self.do(asyncio.sleep(0))

    async def resize(self, uid: str, change: int, mebibytes: int) -> None:
        """Resize each of the pod's containers by so many CPUs and MiB, if that fits."""
        old = self.pods[uid]
        amounts = []
        for one in sorted(old.all_containers, key=lambda container: container.name):
            kind = "main" if one not in old.init_containers else "sidecar" if one.is_sidecar else "init"
            requests = one.requests
            cpus = requests["cpu"].value if not requests["cpu"].milli % 1000 else 0
            memory = requests["memory"].value // MIB
            if runs_on(old, one):
                cpus, memory = cpus and max(cpus + change, 1), max(memory + mebibytes, 8)
            amounts.append((kind, cpus, memory))
        new = pod_of(uid, amounts)
        resized = False

        async def begin() -> None:
            nonlocal resized
            try:
                self.memory_manager.check_growth(new)
                self.cpus.resize(old, new, self._aligned(new), whole_pod=self.topology_policy.scope == "pod")
                self.memory_manager.grow(new)
                resized = True
            except CannotResize:
                resized = False

        while not await self.do(begin()):
            pass
        if resized:
            self._check_resized(old, new)
            self.pods[uid] = new
            self.memory_manager.shrink(new)
            await self.do(asyncio.sleep(0))

    def _aligned(self, pod: Pod) -> Align:
        def align(container: Container | None, hints: Mapping[str, Hints]) -> Hint | None:
            names = [one.name for one in pod.all_containers if container in (None, one)]
            kept = [self.memory_manager.kept_hints(pod.uid, name) for name in names]
            decision = self.topology_policy.decide([hints, *kept])
            return decision.hint if decision.admit else None

        return align

    def _check_resized(self, old: Pod, new: Pod) -> None:
        """Check that growing CPUs include the earlier ones, and that no container lost one that it started
        with."""
        for was, now in zip(old.all_containers, new.all_containers, strict=True):
            name = f"{new.uid}/{now.name}"
            if name not in self.started or not runs_on(new, now):
                continue
            assert self.cpus.policy is not None
            held = self.cpus.policy.state.held(new.uid, now.name)
            if held is None:
                continue
            assert self.started[name] & ~held == 0
            if was.requests["cpu"] < now.requests["cpu"]:
                assert cpu_set.parse(self.cpusets[name]) & ~held == 0

    async def remove(self, uid: str) -> None:
        del self.pods[uid]

        async def release() -> None:
            self.cpus.release(uid)
            self.memory_manager.release(uid)

        await self.do(release())

    async def restart(self) -> None:
        """Stop the agent and start another."""
        await self.end()
        await self.start()

    # What has to hold

    def check(self) -> None:
        """Compare the managers, both files and the runtime with the rules."""
        self._check_cpus()
        self._check_memory()

    def _check_cpus(self) -> None:
        policy = self.cpus.policy
        assert policy is not None
        used = 0
        for one in self.running():
            pod = self.pods[one.pod_uid]
            held = policy.state.held(one.pod_uid, one.name)
            if held is None:
                assert cpu_set.parse(self.cpusets[one.id]) == (policy.state.shared or policy.reserved)
                continue
            assert cpu_set.parse(self.cpusets[one.id]) == held
            assert held & (used | policy.state.shared | policy.reserved | ~policy.topology.cpus) == 0
            container = next(c for c in pod.all_containers if c.name == one.name)
            assert held.bit_count() == container.requests["cpu"].value
            if self.started.get(one.id, 0) & ~held:
                self.started[one.id] = held  # the machine lost some of its CPUs
            used |= held
        checkpoint = cpu_checkpoint.decode((self.root / CPU_FILE).read_bytes())
        assert cpu_set.parse(checkpoint.default_cpu_set) == policy.state.shared
        listed = {
            (uid, name): cpu_set.parse(text)
            for uid, containers in checkpoint.entries.items()
            for name, text in containers.items()
        }
        assert listed == {(uid, name): cpus for uid, name, cpus in policy.state.entries()}
        assert {uid for uid, _ in listed} <= self.pods.keys()

    def _blocks(self) -> Iterator[Block]:
        assert self.memory_manager.policy is not None
        return chain.from_iterable(blocks for _, _, blocks in self.memory_manager.policy.state.entries())

    def _check_memory(self) -> None:
        policy = self.memory_manager.policy
        assert policy is not None
        nodes = policy.state.nodes
        for node, state in nodes.items():
            at = [block for block in self._blocks() if node in block.nodes]
            assert state.number_of_assignments == len(at)
            assert all(block.nodes == state.cells for block in at)
            assert at or state.cells == (node,)
            table = state.memory_map["memory"]
            assert table.free >= 0
            assert table.free + table.reserved == table.allocatable
            assert table.allocatable == self.unclaimed[node] - table.system_reserved
        for group in {state.cells for state in nodes.values()}:
            reserved = sum(block.size for block in self._blocks() if block.nodes == group)
            assert reserved == sum(nodes[node].memory_map["memory"].reserved for node in group)
        for uid, pod in self.pods.items():
            for container in pod.all_containers:
                blocks = policy.state.held(uid, container.name)
                if runs_on(pod, container) and blocks is not None:
                    assert sum(block.size for block in blocks) == container.requests["memory"].value
        checkpoint = memory_checkpoint.decode((self.root / MEMORY_FILE).read_bytes())
        assert checkpoint.machine_state == nodes
        listed = {
            (uid, name): tuple(blocks)
            for uid, containers in checkpoint.entries.items()
            for name, blocks in containers.items()
        }
        assert listed == {(uid, name): blocks for uid, name, blocks in policy.state.entries()}
        assert {uid for uid, _ in listed} <= self.pods.keys()


def reserve(memory: list[NodeMemory], mebibytes: int) -> list[MemoryReservation]:
    """Return a reservation on the first node that has memory."""
    first = next(one for one in memory if one.memory)
    return [MemoryReservation(first.node, {"memory": Quantity.from_value(mebibytes * MIB)})]
