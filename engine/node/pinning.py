"""Builds the CPU and memory managers of a node and applies their decisions to its containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from engine.api import cpu_set
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CpusSection
from engine.api.pod import Container, Pod
from engine.api.resources import CPU
from engine.cgroups.formulas.containers import ContainerResources
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cgroups.resize import ResizeDecision
from engine.cpumanager.division import Division
from engine.cpumanager.machine import isolated_cpus, offline_cpus, online_cpus, read_topology
from engine.cpumanager.manager import CpuManager, CpuReaders
from engine.cpumanager.moving import RunningContainer
from engine.cpumanager.shared_cpus import SharedCpus
from engine.cpumanager.system_processes import FIELD as SYSTEM_CGROUPS
from engine.cpumanager.system_processes import SystemProcesses
from engine.cri.client import RuntimeClient
from engine.devices.pod_resources import MemoryBlock
from engine.host.cgroupfs.mounts import find_mounts
from engine.host.node_context import NodeContext
from engine.memorymanager.machine import read_nodes
from engine.memorymanager.manager import MemoryManager
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.topologymanager.policy import Hint, Hints, Numa, TopologyPolicy
from engine.topologymanager.provider import CannotResize, HintProvider
from engine.wire import cri_v1_pb2 as cri


class Pinning:
    """Place containers on exclusive CPUs and reserved memory; implements
    `engine.node.sync.services.ContainerPlacement`.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        numa: Numa,
        cgroups: NodeCgroups,
        runtime: RuntimeClient,
        watch: RuntimeWatch,
    ) -> None:
        self._runtime, self._watch, self._cgroups = runtime, watch, cgroups
        self._policy = TopologyPolicy()
        reserved = cgroups.settings.node.reservation()
        self.cpus = CpuManager(
            context,
            readers=CpuReaders(read_topology, online_cpus, offline_cpus),
            numa=numa,
            reserved=reserved.get(CPU),
            running=self._running,
            move=self._move,
        )
        self.memory = MemoryManager(
            context,
            machine=read_nodes,
            numa=numa,
            reserved=reserved,
            runs=watch.runs,
        )
        if self.cpus.policy is not None:
            cgroups.has_exclusive_cpus = self.cpus.is_exclusive

    def divide_shared(self, context: NodeContext, active: Callable[[], Iterable[Pod]]) -> None:
        """Set up what `cpus` in the KubengineConfiguration switches on. Raises `InvalidInput`."""
        section = context.kubengine_config.cpus
        if section == CpusSection():
            return
        if self.cpus.policy is None:
            raise InvalidInput("needs cpuManagerPolicy: static", subject="cpus")
        if section.pools or section.keep_together or section.respect_isolated:
            shares = SharedCpus(section, isolated_cpus())
            if shares.by_use and not self._cgroups.enabled:
                raise InvalidInput("sizedBy: use needs the pods' cgroups", subject="cpus.pools")
            self.cpus.divide_shared(
                Division(
                    shares,
                    active=active,
                    cpu_seconds=self._cgroups.pod_cpu_seconds,
                    decisions=context.decisions,
                    tasks=context.tasks,
                )
            )
        if section.system_cgroups:
            hierarchy = find_mounts().holding("cpuset")
            if hierarchy is None:
                raise InvalidInput("needs the cgroup controller cpuset", subject=SYSTEM_CGROUPS)
            root, decisions = Path(hierarchy.path), context.decisions
            self.cpus.keep_off(
                SystemProcesses(section.system_cgroups, root, decisions=decisions, registry=context.registry)
            )

    def _running(self) -> Iterator[RunningContainer]:
        for record in self._watch.pods.values():
            for container in record.containers:
                if container.running:
                    yield RunningContainer(record.uid, container.name, container.id)

    async def _move(self, container_id: str, cpus: str) -> None:
        await self._runtime.update_container_resources(
            container_id, cri.LinuxContainerResources(cpuset_cpus=cpus)
        )

    def place(self, pod: Pod, container: Container, values: ContainerResources) -> ContainerResources:
        """Add the CPUs and NUMA nodes that a container may use to its configuration for the runtime."""
        if self.cpus.policy is None and self.memory.policy is None:
            return values
        return replace(
            values,
            cpuset_cpus=self.cpus.cpuset(pod, container.name),
            cpuset_mems=self.memory.mems(pod, container.name),
        )

    def align_by(self, policy: TopologyPolicy) -> None:
        """Use this topology policy for resizes."""
        self._policy = policy

    def resize(self, old: Pod, new: Pod) -> ResizeDecision:
        """Give a running pod the CPUs and memory of its new amounts, or say why that is impossible now.

        CPUs that it no longer has are taken from it at once. `resized` frees memory.
        """
        try:
            self.memory.check_growth(new)
            self.cpus.resize(old, new, partial(self._aligned, new), whole_pod=self._policy.scope == "pod")
        except CannotResize as error:
            if error.never:
                return ResizeDecision("Infeasible", str(error), detail="insufficient_node_allocatable")
            return ResizeDecision("Deferred", str(error))
        self.memory.grow(new)
        return ResizeDecision("Proceed")

    async def wait_placed(self, pod: Pod) -> None:
        """Return when the pod's containers run on their exclusive CPUs and the state is on disk.

        Raises `Refused`.
        """
        await self.cpus.wait_placed(pod.uid)
        await self.memory.flush()

    def resized(self, pod: Pod) -> None:
        """Free the memory that a resized pod no longer requests."""
        self.memory.shrink(pod)

    def _aligned(self, pod: Pod, container: Container | None, hints: Mapping[str, Hints]) -> Hint | None:
        """Merge hints for more CPUs with the memory that a container, or the whole pod, keeps."""
        names = [container.name] if container is not None else [one.name for one in pod.all_containers]
        kept = [self.memory.kept_hints(pod.uid, name) for name in names]
        decision = self._policy.decide([hints, *kept])
        return decision.hint if decision.admit else None

    def hint_providers(self) -> list[HintProvider]:
        """Return the managers that have a policy; without one, a manager decides nothing about any pod."""
        return [manager for manager in (self.cpus, self.memory) if manager.policy is not None]

    def containers_changed(self) -> None:
        """Move containers to other CPUs, if those that run have changed."""
        if self.cpus.policy is not None:
            self.cpus.containers_changed()

    def starting(self, pod: Pod, container: Container) -> None:
        """Give back the memory of init containers that have ended by the time this container starts."""
        if self.memory.policy is not None:
            self.memory.container_started(pod, container)

    # The pod-resources API

    def exclusive_cpus(self, pod_uid: str, container: str) -> list[int]:
        """Return the exclusive CPUs of a container, ascending."""
        policy = self.cpus.policy
        return list(cpu_set.numbers(policy.state.held(pod_uid, container) or 0)) if policy is not None else []

    def allocatable_cpus(self) -> list[int]:
        """Return all CPUs that can be exclusive, ascending."""
        policy = self.cpus.policy
        return list(cpu_set.numbers(policy.allocatable)) if policy is not None else []

    def promised_memory(self, pod_uid: str, container: str) -> list[MemoryBlock]:
        """Return the reserved memory of a container."""
        policy = self.memory.policy
        blocks = policy.state.held(pod_uid, container) or () if policy is not None else ()
        return [MemoryBlock(block.type, block.size, block.nodes) for block in blocks]

    def allocatable_memory(self) -> list[MemoryBlock]:
        """Return the allocatable memory of each NUMA node."""
        policy = self.memory.policy
        return [
            MemoryBlock(kind, table.allocatable, (node,))
            for node, state in (policy.state.nodes.items() if policy is not None else ())
            for kind, table in sorted(state.memory_map.items())
            if table.allocatable
        ]
