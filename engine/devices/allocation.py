"""Allocates a pod's devices: hints, choice, Allocate calls, record, disk; or nothing at all.

One `Attempt` is all or nothing: what it claimed is released if any step of any container fails. The order of
the steps is the kubelet's; calls to different plugins for one container run in parallel.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

import msgspec

from engine.api.errors import KubengineError, Refused
from engine.api.pod import Container, Pod
from engine.devices.checkpoint import CheckpointEntry
from engine.devices.checkpoint_file import CheckpointFile
from engine.devices.endpoint import Endpoint
from engine.devices.selection import DeviceSelection, SelectionError, select
from engine.devices.state import DeviceState
from engine.host.node_context import NodeContext
from engine.host.state_file import FaultPoint
from engine.topologymanager.alignment_metrics import (
    CONTAINER,
    NUMA_NODE,
    POD,
    AlignmentMetrics,
    AlignmentTally,
)
from engine.topologymanager.pod_level import manages_pod_level, manages_whole_pod
from engine.topologymanager.policy import ANYWHERE, Hint, Hints, TopologyDecision, TopologyPolicy
from engine.topologymanager.provider import HintProvider

TOPOLOGY_MESSAGE = "Resources cannot be allocated with Topology locality"
POD_LEVEL_MESSAGES = {
    "container": (
        "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
    ),
    "pod": "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
}
"""By scope, with the gate PodLevelResourceManagers."""
UNPROVEN_MESSAGE = "the search among so many NUMA nodes ended early; a better aligned choice may exist"
EXPLANATIONS = 1000
NODE_RESOURCES = ""
"""The lock of what providers give; it sorts before every device resource."""

log = logging.getLogger("kubengine.devices")


class TopologyError(Exception):
    """Raised if the topology policy does not admit the pod."""


class Chosen(msgspec.Struct, frozen=True):
    """Hold devices that were claimed for a container and not allocated yet."""

    container: str
    resource: str
    selection: DeviceSelection


class Explanation(msgspec.Struct, frozen=True):
    """Explain why a container has its devices."""

    pod: str
    pod_uid: str
    container: str
    resource: str
    selection: DeviceSelection
    numa: tuple[int, ...] | None


class Attempt(msgspec.Struct):
    """Track what one attempt for one pod has claimed and recorded so far."""

    pod: Pod
    chosen: list[Chosen] = msgspec.field(default_factory=list)
    assigned: list[CheckpointEntry] = msgspec.field(default_factory=list)
    given: list[Chosen] = msgspec.field(default_factory=list)
    reusable: dict[str, set[str]] = msgspec.field(default_factory=dict)
    providers: Sequence[HintProvider] = ()
    """Those of CPUs and memory that the pod asks for."""
    hint: Hint = ANYWHERE
    affinity: tuple[int, ...] | None = None
    locked: frozenset[str] = frozenset()
    tally: AlignmentTally = msgspec.field(default_factory=AlignmentTally)


class Allocator:
    """Allocate from `state` through `endpoints`, and from `providers` with one topology policy for all.

    `file` writes the state to disk. `is_running(pod uid, container name)` tells whether a container is left
    from an earlier agent and so keeps its devices.
    """

    def __init__(
        self,
        context: NodeContext,
        state: DeviceState,
        file: CheckpointFile,
        *,
        endpoints: Mapping[str, Endpoint],
        policy: TopologyPolicy,
        is_running: Callable[[str, str], bool],
        fault: FaultPoint,
        providers: Sequence[HintProvider] = (),
    ) -> None:
        section, registry = context.kubengine_config.devices, context.registry
        self._providers = providers
        self._config = context.config
        self._alignment = AlignmentMetrics(registry)
        if policy.name != "none":
            for scope in (CONTAINER, POD):
                self._alignment.aligned.inc(scope, NUMA_NODE, by=0)
                self._alignment.failed.inc(scope, NUMA_NODE, by=0)
        self._state = state
        self._endpoints = endpoints
        self._policy = policy
        self._file = file
        self._is_running = is_running
        self._decisions = context.decisions
        self._fault = fault
        self._one_call_per_pod = section.one_allocate_per_pod
        self._keeps_init_surplus = not section.release_init_surplus
        self._locks: dict[str, asyncio.Lock] = {}
        self.explanations: deque[Explanation] = deque(maxlen=EXPLANATIONS)
        self._seconds = registry.histogram(
            "kubelet_device_plugin_alloc_duration_seconds",
            "Duration in seconds to serve a device plugin Allocation request.",
            ("resource_name",),
        )

    async def pod(self, pod: Pod, tally: AlignmentTally) -> None:
        """Give every container of the pod its devices, CPUs and memory.

        `tally` receives the alignments of this try alone: an admission that waits has several tries, and the
        kubelet, where pods do not wait, counts each admission once.

        Raises `SelectionError`, `AllocationError`, `TopologyError` or `Refused`.
        """
        tally.aligned = tally.failed = 0
        attempt = Attempt(pod, providers=[one for one in self._providers if one.concerns(pod)], tally=tally)
        if self._policy.name == "none" and not attempt.providers and not self._state.resources:
            return
        async with self._all_or_nothing(attempt):
            if self._policy.name != "none" and self._policy.scope == "pod":
                needs = self._kinds(attempt, self._state.pod_needs(pod))
                async with self._choosing(attempt, needs):
                    attempt.locked = frozenset(needs)
                    hints = [provider.pod_hints(pod) for provider in attempt.providers]
                    self._align(attempt, self._state.pod_hints(pod, self._policy.numa), *hints)
                    await self._choose_all(attempt)
                    if manages_whole_pod(self._config, pod):
                        for provider in attempt.providers:
                            provider.allocate_pod(pod, attempt.hint)
                    attempt.tally.aligned += 1
            else:
                await self._choose_all(attempt)
            await self._hand_out_all(attempt)

    async def _choose_all(self, attempt: Attempt) -> None:
        pod = attempt.pod
        for container in pod.all_containers:
            init = container in pod.init_containers
            if init and self._init_surplus_released(pod, container):
                continue
            await self._container(attempt, container, init=init)

    async def container(self, pod: Pod, container: Container) -> None:
        """Give one container its devices again, after its record was lost or released."""
        attempt = Attempt(pod)
        if container in pod.init_containers:
            for app in pod.spec.containers:
                for entry in self._state.entries_of(pod.uid, app.name):
                    attempt.reusable.setdefault(entry.resource_name, set()).update(entry.devices)
        async with self._all_or_nothing(attempt):
            await self._container(attempt, container, init=container in pod.init_containers)
            await self._hand_out_all(attempt)

    @staticmethod
    def _kinds(attempt: Attempt, needs: Collection[str]) -> list[str]:
        """Return the resources from which others may not choose at the same time."""
        return [*needs, *([NODE_RESOURCES] if attempt.providers else [])]

    @asynccontextmanager
    async def _all_or_nothing(self, attempt: Attempt) -> AsyncIterator[None]:
        uid = attempt.pod.uid
        giving = [provider for provider in attempt.providers if uid not in provider.pod_uids]
        try:
            yield
            # Also for a pod that had something before: some of its containers may have got more.
            for provider in attempt.providers:
                await provider.flush()
            if attempt.assigned:
                # Before any container starts: after a crash the next agent would give devices of a running
                # container to another pod.
                await self._file.flush()
                self._fault("durable")
                for given in attempt.given:
                    self._record(attempt, given)
        except BaseException:
            for provider in giving:
                provider.release(uid)
            for chosen in attempt.chosen:
                self._state.release(chosen.resource, chosen.selection.devices)
            for entry in attempt.assigned:
                # The pod may have been removed during one of the calls, and its devices may have a new owner.
                held = self._state.held(entry.pod_uid, entry.container_name, entry.resource_name)
                if held is entry:
                    self._state.unassign(entry)
            if attempt.assigned:
                self._file.changed()
            raise

    def _record(self, attempt: Attempt, given: Chosen) -> None:
        by_why = {why: devices for why, devices in given.selection._asdict().items() if devices}
        inputs = {
            "resource": given.resource,
            "devices": given.selection.devices,
            "chosen": by_why,
            "numa": attempt.affinity,
            "policy": self._policy.name,
        }
        why = ", ".join(by_why)
        self._decisions.pod(attempt.pod, "devices", "allocated", why, inputs, container=given.container)

    @asynccontextmanager
    async def _choosing(self, attempt: Attempt, resources: Collection[str]) -> AsyncIterator[None]:
        """Lock the resources in the order of their names, so that hints about free devices still hold at the
        choice.
        """
        # One order for all pods: two that need the same resources cannot wait for each other's.
        wanted = sorted(set(resources) - attempt.locked)
        locks = [self._locks.setdefault(name, asyncio.Lock()) for name in wanted]
        taken: list[asyncio.Lock] = []
        try:
            for lock in locks:
                await lock.acquire()
                taken.append(lock)
            yield
        finally:
            for lock in reversed(taken):
                lock.release()

    def _align(self, attempt: Attempt, *hints: Mapping[str, Hints] | None) -> None:
        """Ask the policy for the NUMA nodes of the next devices, CPUs and memory."""
        decision: TopologyDecision = self._policy.decide(hints)
        if not decision.proven:
            log.warning("pod %s: %s", attempt.pod.full_name, UNPROVEN_MESSAGE)
        if not decision.admit:
            attempt.tally.failed += 1
            message = TOPOLOGY_MESSAGE
            if manages_pod_level(self._config, attempt.pod):
                message = POD_LEVEL_MESSAGES[self._policy.scope]
            text = message if decision.proven else f"{message}; {UNPROVEN_MESSAGE}"
            raise TopologyError(text)
        hint = attempt.hint = decision.hint
        attempt.affinity = None if hint.mask is None else self._policy.numa.ids(hint.mask)

    def count(self, tally: AlignmentTally) -> None:
        """Count the alignments of an admission, if the policy guarantees one NUMA node."""
        if self._policy.name == "single-numa-node":
            self._alignment.aligned.inc(self._policy.scope, NUMA_NODE, by=tally.aligned)
            self._alignment.failed.inc(self._policy.scope, NUMA_NODE, by=tally.failed)

    async def _container(self, attempt: Attempt, container: Container, *, init: bool) -> None:
        """Choose and claim what the container asks for, and track what later containers may reuse."""
        pod, state = attempt.pod, self._state
        needs = state.needs(container)
        async with self._choosing(attempt, self._kinds(attempt, needs)):
            if self._policy.name != "none" and self._policy.scope == "container":
                of_devices = state.container_hints(pod, container, self._policy.numa, attempt.reusable)
                hints = [provider.container_hints(pod, container) for provider in attempt.providers]
                self._align(attempt, of_devices, *hints)
            for resource, required in needs.items():
                await self._choose(attempt, container, resource, required)
            if not manages_whole_pod(self._config, pod):
                for provider in attempt.providers:
                    provider.allocate(pod, container, attempt.hint)
            if self._policy.scope == "container":
                attempt.tally.aligned += 1
        has: dict[str, set[str]] = {
            e.resource_name: set(e.devices) for e in state.entries_of(pod.uid, container.name)
        }
        for chosen in attempt.chosen:
            if chosen.container == container.name:
                has[chosen.resource] = set(chosen.selection.devices)
        for resource, devices in has.items():
            pool = attempt.reusable.setdefault(resource, set())
            # An ordinary init container ends before the next container starts, and its devices are used
            # again. All others run together.
            if init and not container.is_sidecar:
                pool |= devices
            else:
                pool -= devices

    async def _choose(self, attempt: Attempt, container: Container, resource: str, required: int) -> None:
        state, uid = self._state, attempt.pod.uid
        needed = state.still_needed(uid, container.name, resource, required)
        # Plugins register only after the agent has started, so nothing is known about the health of what a
        # running container has.
        if self._is_running(uid, container.name):
            return
        found = state.check_health(resource, state.held(uid, container.name, resource))
        if needed == 0:
            return
        endpoint = self._endpoints.get(resource)
        consult = endpoint is not None and endpoint.options.get_preferred_allocation_available
        choosing = select(
            found.inventory,
            resource,
            required,
            reusable=attempt.reusable.get(resource, ()),
            affinity=attempt.affinity,
            consult=consult,
        )
        try:
            question = next(choosing)
            assert endpoint is not None
            answer = await endpoint.preferred(question.available, question.must_include, question.size)
            choosing.send(answer)
        except StopIteration as done:
            selection: DeviceSelection = done.value
        if len(selection.devices) != required:
            raise SelectionError(
                f"unexpectedly allocated less resources than required. "
                f"Requested: {required}, Got: {len(selection.devices)}"
            )
        state.claim(resource, selection.devices)
        attempt.chosen.append(Chosen(container.name, resource, selection))
        self._fault("chosen")
        self.explanations.append(
            Explanation(attempt.pod.full_name, uid, container.name, resource, selection, attempt.affinity)
        )

    async def _hand_out_all(self, attempt: Attempt) -> None:
        """Allocate container by container, or all at once; no other choice waits for it."""
        groups: dict[str, list[Chosen]] = {}
        for chosen in attempt.chosen:
            groups.setdefault("" if self._one_call_per_pod else chosen.container, []).append(chosen)
        for group in groups.values():
            await self._hand_out(attempt, group)

    async def _hand_out(self, attempt: Attempt, group: Sequence[Chosen]) -> None:
        """Call Allocate for the chosen devices, one call per plugin in parallel, and record the answers."""
        by_resource: dict[str, list[Chosen]] = {}
        for chosen in group:
            by_resource.setdefault(chosen.resource, []).append(chosen)
        if len(by_resource) == 1:
            ((resource, listed),) = by_resource.items()
            answers = [await self._call(resource, listed)]
        else:
            # Every call ends before any error is raised: what is released then may go to another pod at once.
            results = await asyncio.gather(
                *(self._call(resource, listed) for resource, listed in by_resource.items()),
                return_exceptions=True,
            )
            answers = []
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                answers.append(result)
        self._fault("allocated")
        for listed, responses in zip(by_resource.values(), answers, strict=True):
            for chosen, response in zip(listed, responses, strict=False):
                entry = self._state.make_entry(
                    attempt.pod.uid, chosen.container, chosen.resource, chosen.selection.devices, response
                )
                attempt.chosen.remove(chosen)
                attempt.given.append(chosen)
                self._state.assign(entry)
                attempt.assigned.append(entry)
        self._fault("recorded")

    async def _call(self, resource: str, listed: Sequence[Chosen]) -> list[bytes]:
        endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise Refused(f"unknown Device Plugin {resource}")
        begun = perf_counter()
        try:
            responses = await endpoint.allocate([chosen.selection.devices for chosen in listed])
        finally:
            self._seconds.observe(perf_counter() - begun, resource)
        return [response.SerializeToString(deterministic=True) for response in responses]

    def _init_surplus_released(self, pod: Pod, container: Container) -> bool:
        """Tell whether this is an init container whose devices were released when the app
        containers started.
        """
        return (
            not self._keeps_init_surplus
            and not container.is_sidecar
            and not self._state.entries_of(pod.uid, container.name)
            and any(self._state.entries_of(pod.uid, app.name) for app in pod.spec.containers)
        )


def reason_of(error: Exception) -> str:
    """Return the message of a failed allocation without our own prefix."""
    return error.message if isinstance(error, KubengineError) else str(error)
