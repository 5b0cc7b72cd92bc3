"""Stores the reserved memory of a running node on disk, and sets cpuset.mems of containers.

`static_policy` decides. This file keeps `memory_manager_state` and reports reservations of an earlier agent
that are no longer valid.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

import msgspec

from engine.api.config import EXCLUSIVE_MEMORY_GATE, POD_LEVEL_MANAGERS_GATE
from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.api.resources import HUGEPAGES_PREFIX, MEMORY
from engine.host.node_context import NodeContext
from engine.host.state_file import FaultPoint, StateFile, no_fault
from engine.memorymanager.checkpoint import MemoryCheckpoint, PodBlocks, decode, encode
from engine.memorymanager.reservation import reserved_memory
from engine.memorymanager.restoring import LostMemory, restore
from engine.memorymanager.state import Block, MemoryState, NodeMemory, NodeState, unused
from engine.memorymanager.static_policy import StaticMemoryPolicy
from engine.metrics import Registry
from engine.topologymanager.lost_allocations import LostAllocations
from engine.topologymanager.pod_level import manages_whole_pod
from engine.topologymanager.policy import ANYWHERE, Hint, Hints, Numa
from engine.topologymanager.provider import AllocationError, CannotResize

FILE_NAME = "memory_manager_state"
NONE, STATIC = "None", "Static"

log = logging.getLogger("kubengine.memory")


class MemoryManager:
    """Provide hints of memory and huge pages under the Static policy; under None it is not used.

    `reserved` is the memory that node allocatable excludes: reservations and hard eviction thresholds.
    `runs(pod uid, container)` tells whether a container runs.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        machine: Callable[[], list[NodeMemory]],
        numa: Numa,
        reserved: Mapping[str, Quantity],
        runs: Callable[[str, str], bool] = lambda pod_uid, container: False,
        fault: FaultPoint = no_fault,
    ) -> None:
        config = context.config
        self._runs = runs
        policy = config.memory_manager_policy
        if policy not in (NONE, STATIC):
            raise InvalidInput(
                f'unknown policy: "{policy}"; expected None or Static', subject="memoryManagerPolicy"
            )
        self._numa = numa
        self._config = config
        self._pod_level = config.gate(POD_LEVEL_MANAGERS_GATE, False)
        self._resizes = config.gate(EXCLUSIVE_MEMORY_GATE, False)
        self._decisions = context.decisions
        self._lost_allocations = LostAllocations[LostMemory]("memory", context.recorder, context.decisions)
        self._file = StateFile(
            context.root / FILE_NAME,
            self._snapshot,
            name="memory-manager-state",
            tasks=context.tasks,
            fault=fault,
        )
        self.policy: StaticMemoryPolicy | None = None
        if policy == STATIC:
            kept = reserved_memory(numa.nodes, reserved, config.reserved_memory or ())
            self._unused = unused(machine(), kept)
            self.policy = StaticMemoryPolicy(numa, MemoryState(self._fresh()), pod_level=self._pod_level)
            self._observe(context.registry)

    def _observe(self, registry: Registry) -> None:
        self._requests = registry.counter(
            "kubelet_memory_manager_pinning_requests_total",
            "The number of memory pages allocations which required pinning.",
        )
        self._errors = registry.counter(
            "kubelet_memory_manager_pinning_errors_total",
            "The number of memory pages allocations which required pinning that failed.",
        )
        self._allocations = registry.counter(
            "kubelet_resource_manager_allocations_total",
            "Number of exclusive resource allocations performed by a resource manager.",
            ("resource_name", "source"),
        )
        self._allocation_errors = registry.counter(
            "kubelet_resource_manager_allocation_errors_total",
            "Number of errors encountered during exclusive resource allocation.",
            ("resource_name", "source"),
        )
        self._assignments = registry.counter(
            "kubelet_resource_manager_container_assignments",
            "Number of containers with a specific type of resource assignment.",
            ("resource_name", "assignment_type"),
        )

    # Life

    async def start(self) -> None:
        """Read the state of an earlier agent and keep its valid reservations."""
        checkpoint = self._file.read(decode, self._damaged)
        if checkpoint is not None:
            self._restore(checkpoint)
        await self._file.start()
        # A policy that changed, or a damaged file, must not be found again after a crash.
        await self._file.flush()

    async def stop(self) -> None:
        """Write the state."""
        await self._file.stop()

    def _damaged(self, fault: str) -> None:
        self._lost_allocations.state_changed(f"{fault}; reserving memory for running pods again")

    def _restore(self, checkpoint: MemoryCheckpoint) -> None:
        if self.policy is None:
            if checkpoint.policy_name != NONE:
                log.warning(
                    "%s: its memory is ignored: it is of the policy %s, and the policy is now None",
                    self._file.path,
                    checkpoint.policy_name,
                )
            return
        restored = restore(checkpoint, self._fresh(), pod_level=self._pod_level)
        self.policy.state = restored.state
        if checkpoint.policy_name != STATIC:
            restored.changes.append(f"the policy was {checkpoint.policy_name!r}")
        self._lost_allocations.restored(
            restored.changes,
            {f"{one.container} of pod {one.pod_uid}: {one.reason}": one for one in restored.lost},
        )

    def _fresh(self) -> dict[int, NodeState]:
        """Return the state of the machine without any reservation."""
        return copy.deepcopy(self._unused)

    def _snapshot(self) -> bytes:
        if self.policy is None:
            return encode(MemoryCheckpoint(NONE, pod_entries={} if self._pod_level else None))
        state = self.policy.state
        entries: dict[str, dict[str, list[Block]]] = {}
        for uid, name, blocks in state.entries():
            entries.setdefault(uid, {})[name] = list(blocks)
        pods = {uid: PodBlocks(list(blocks)) for uid, blocks in state.pods.items()}
        return encode(MemoryCheckpoint(STATIC, state.nodes, entries, pods if self._pod_level else None))

    # Pods

    def concerns(self, pod: Pod) -> bool:
        """Return whether a container of the pod gets reserved memory."""
        if self.policy is None:
            return False
        try:
            wanted = map(self.policy.wanted, repeat(pod), pod.all_containers)
            return bool(self.policy.pod_wanted(pod)) or any(wanted)
        except AllocationError:
            return True  # `allocate` raises it again

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Return hints for the whole pod."""
        return self.policy.pod_hints(pod) if self.policy is not None else None

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        """Return hints for one container."""
        return self.policy.container_hints(pod, container) if self.policy is not None else None

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Reserve the container's memory. Raises `AllocationError`."""
        if self.policy is None:
            return
        held = self.policy.state.held(pod.uid, container.name)
        try:
            if self.policy.wanted(pod, container):
                self._requests.inc()
            self.policy.allocate(pod, container, hint)
        except AllocationError:
            self._count_error("node")
            raise
        blocks = self.policy.state.held(pod.uid, container.name)
        if blocks is not None and held is None:
            for _ in blocks:
                self._allocations.inc("memory", "node")
            self._assignments.inc("memory", "node_exclusive")
            inputs = {block.type: block.size for block in blocks}
            nodes = list(blocks[0].nodes) if blocks else []
            self._decisions.pod(
                pod, "memory", "allocated", "", {**inputs, "numa": nodes}, container=container.name
            )
            self._file.changed()

    def count_failure(self, pod: Pod, lacking: Collection[str]) -> bool:
        """Count an allocation that failed because the node lacks memory or huge pages for the pod; return
        whether it does.
        """
        short = [name for name in lacking if name == MEMORY or name.startswith(HUGEPAGES_PREFIX)]
        failed = bool(short) and self.concerns(pod)
        if failed:
            self._requests.inc()
            self._count_error("node")
        return failed

    def _count_error(self, level: str) -> None:
        self._errors.inc()
        self._allocation_errors.inc("memory", level)

    def allocate_pod(self, pod: Pod, hint: Hint) -> None:
        """Reserve the memory of the pod's pod-level resources. Raises `AllocationError`."""
        policy = self.policy
        if policy is None or pod.uid in policy.state.pods or not policy.pod_wanted(pod):
            return
        self._requests.inc()
        try:
            policy.allocate_pod(pod, hint)
        except AllocationError:
            self._count_error("pod")
            raise
        for container in pod.all_containers:
            own = bool(policy.wanted(pod, container))
            self._allocations.inc("memory", "pod")
            self._assignments.inc("memory", "pod_exclusive" if own else "pod_shared")
        blocks = policy.state.pods[pod.uid]
        inputs = {block.type: block.size for block in blocks}
        self._decisions.pod(pod, "memory", "allocated", "", {**inputs, "numa": list(blocks[0].nodes)})
        self._file.changed()

    @property
    def pod_uids(self) -> Collection[str]:
        """Return the uids of pods with reserved memory."""
        return self.policy.state.pod_uids if self.policy is not None else ()

    def release(self, pod_uid: str) -> None:
        """Release the memory of a terminated pod."""
        self._lost_allocations.forget(pod_uid)
        if self.policy is not None and pod_uid in self.policy.state.pod_uids:
            self.policy.release(pod_uid)
            self._file.changed()

    def collect(self, keep: Collection[str]) -> None:
        """Release the memory of pods whose uid is not in `keep`."""
        for uid in [uid for uid in self.pod_uids if uid not in keep]:
            log.info("memory of pod %s, which no longer exists, is free again", uid)
            self.release(uid)

    def adopted(self, pod: Pod, choose: Callable[[Pod, Container], Hint]) -> None:
        """Reserve memory again for containers of a running pod that lost theirs.

        `choose` asks the topology policy. The pod is never rejected: its pages stay on their nodes.
        """
        lost = self._lost_allocations.adopt(pod.uid) if self.policy is not None else None
        if self.policy is None or lost is None:
            return
        # A kubelet that starts again reserves memory for init containers that have ended long ago.
        for container in pod.all_containers:
            if self._runs(pod.uid, container.name):
                self.container_started(pod, container)
        self._complete_resize(pod)
        if pod.uid in self.policy.state.pods:
            return
        if manages_whole_pod(self._config, pod):
            self._reassign(
                pod,
                "",
                next(iter(lost.values()), None),
                lambda: self.allocate_pod(pod, ANYWHERE),
            )
            return
        for container in pod.all_containers:
            ended = container in pod.init_containers and not container.is_sidecar
            if ended or self.policy.state.held(pod.uid, container.name) is not None:
                continue
            with suppress(AllocationError):
                if not self.policy.wanted(pod, container):
                    continue
            before = lost.get(container.name)
            allocate = partial(self._allocate_where, pod, container, choose)
            self._reassign(pod, container.name, before, allocate)

    def _complete_resize(self, pod: Pod) -> None:
        """Reserve what a running pod was resized to, which a kubelet that admitted the resize did not."""
        self.shrink(pod)
        try:
            self.check_growth(pod)
            self.grow(pod)
        except CannotResize as error:
            text = "keeps less reserved memory than it requests"
            self._lost_allocations.reassigned(pod, "", text, f": {error}", {}, found=False)

    def _allocate_where(
        self, pod: Pod, container: Container, choose: Callable[[Pod, Container], Hint]
    ) -> None:
        self.allocate(pod, container, choose(pod, container))

    def _reassign(
        self, pod: Pod, container: str, lost: LostMemory | None, allocate: Callable[[], None]
    ) -> None:
        """Reserve memory for a running container, or the pod without a name, and record the decision."""
        assert self.policy is not None
        try:
            allocate()
            state = self.policy.state
            blocks = state.held(pod.uid, container) if container else state.pods.get(pod.uid)
            where = sorted({node for block in blocks or () for node in block.nodes})
            found, text = True, f"now has reserved memory on NUMA nodes {where}"
        except AllocationError as error:
            found, text = False, f"has no reserved memory from now on: {error}"
        why = f" ({lost.reason})" if lost is not None else ""
        inputs = {"reason": lost.reason if lost else ""}
        self._lost_allocations.reassigned(pod, container, text, why, inputs, found=found)

    def check_growth(self, pod: Pod) -> None:
        """Raise `CannotResize` if the new amounts of a running pod do not fit on its NUMA nodes."""
        if self._resizes and self.policy is not None:
            self.policy.check_growth(pod)

    def kept_hints(self, pod_uid: str, container: str) -> Mapping[str, Hints]:
        """Return hints for the NUMA nodes that a running container's memory stays on."""
        held = self.policy.state.held(pod_uid, container) if self.policy is not None else None
        return {one.type: [Hint(self._numa.mask(one.nodes), True)] for one in held or ()}

    def grow(self, pod: Pod) -> None:
        """Promise a running pod its new amounts where they are larger; `check_growth` comes first."""
        if self._resizes and self.policy is not None and self.policy.grow(pod):
            self._decide_resized(pod)

    def shrink(self, pod: Pod) -> None:
        """Free what a running pod no longer asks for, when its containers have the new amounts."""
        if self._resizes and self.policy is not None and self.policy.shrink(pod):
            self._decide_resized(pod)

    def _decide_resized(self, pod: Pod) -> None:
        assert self.policy is not None
        for name, blocks in self.policy.state.of_pod(pod.uid).items():
            inputs = {block.type: block.size for block in blocks}
            nodes = sorted({node for block in blocks for node in block.nodes})
            self._decisions.pod(pod, "memory", "resized", "", {**inputs, "numa": nodes}, container=name)
        self._file.changed()

    def container_started(self, pod: Pod, container: Container) -> None:
        """Release the memory of init containers that ended before this container."""
        if self.policy is not None and self.policy.container_started(pod, container):
            self._file.changed()

    def mems(self, pod: Pod, container: str) -> str:
        """Return the NUMA nodes of a container's memory in the format of `cpuset.mems`; empty for
        any node.
        """
        blocks = self.policy.state.held(pod.uid, container) if self.policy is not None else None
        return ",".join(str(node) for node in sorted({n for block in blocks or () for n in block.nodes}))

    async def flush(self) -> None:
        """Wait until the current state is on disk."""
        await self._file.flush()

    # Questions

    def describe(self) -> dict[str, Any]:
        """Describe the memory of each NUMA node and its containers as JSON-able values."""
        if self.policy is None:
            return {"policy": NONE, "nodes": {}, "containers": []}
        state = self.policy.state
        return {
            "policy": STATIC,
            "nodes": {str(node): msgspec.to_builtins(one) for node, one in state.nodes.items()},
            "containers": [
                {"podUID": uid, "container": name, "blocks": msgspec.to_builtins(blocks)}
                for uid, name, blocks in state.entries()
            ],
        }
