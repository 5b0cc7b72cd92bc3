"""Stores the exclusive CPUs of a running node on disk, and moves containers to their CPUs.

`static_policy` decides. This file keeps `cpu_manager_state`, moves the containers of the shared pool when it
changes, and reports assignments of an earlier agent that are no longer valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from engine.api import cpu_set as cpu_sets
from engine.api.config import EXCLUSIVE_CPUS_GATE, POD_LEVEL_MANAGERS_GATE
from engine.api.errors import KubengineError, Refused
from engine.api.events import WARNING
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.api.resources import CPU, has_pod_level_resources
from engine.cpumanager import baselines
from engine.cpumanager.checkpoint import CpuCheckpoint, decode, encode
from engine.cpumanager.description import describe_machine, describe_policy
from engine.cpumanager.division import Division
from engine.cpumanager.metrics import CpuMetrics
from engine.cpumanager.moving import ContainerMover, RunningContainer
from engine.cpumanager.options import NONE, STATIC, StaticOptions, check_policy
from engine.cpumanager.resizing import Align, fewer_than_requested, resized_cpus
from engine.cpumanager.restoring import LostCpus, RestoredCpus, restore
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy, check_reserved_amount, reserved_cpus
from engine.cpumanager.system_processes import SystemProcesses
from engine.cpumanager.topology import CpuTopology
from engine.host.node_context import NodeContext
from engine.host.state_file import FaultPoint, StateFile, no_fault
from engine.topologymanager.lost_allocations import LostAllocations
from engine.topologymanager.pod_level import manages_whole_pod
from engine.topologymanager.policy import ANYWHERE, Hint, Hints, Numa
from engine.topologymanager.provider import AllocationError, CannotResize

FILE_NAME = "cpu_manager_state"
QUOTA_GATE = "DisableCPUQuotaWithExclusiveCPUs"
SETTLE_SECONDS = 5.0
"""How long a pod with exclusive CPUs waits at most for other containers to leave them."""
CPU_DRIVER = "dra.cpu"
"""The name of the DRA driver that gives CPUs (kubernetes-sigs/dra-driver-cpu)."""

log = logging.getLogger("kubengine.cpus")


class CpuReaders(msgspec.Struct, frozen=True):
    """Read the machine's CPUs: their topology, and those that are online and offline, as bit masks."""

    topology: Callable[[], CpuTopology]
    online: Callable[[], int]
    offline: Callable[[], int]


class CpuManager:
    """Provide hints of CPUs under the static policy; under the policy none it is not used.

    `readers` read the machine's CPUs, which may change at any time. `running` lists the running containers,
    and `move(container id, CPUs)` updates a container's CPUs in the runtime. `reserved` is the CPU that
    systemReserved and kubeReserved reserve.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        readers: CpuReaders,
        numa: Numa,
        reserved: Quantity | None,
        running: Callable[[], Iterable[RunningContainer]],
        move: Callable[[str, str], Awaitable[None]],
        fault: FaultPoint = no_fault,
    ) -> None:
        self._config = config = context.config
        check_policy(config)
        self._readers, self._numa, self._reserved_amount = readers, numa, reserved
        self._pod_level = config.gate(POD_LEVEL_MANAGERS_GATE, False)
        self._named = cpu_sets.parse(config.reserved_system_cpus, "reservedSystemCPUs")
        self._running = running
        self._recorder, self._decisions = context.recorder, context.decisions
        self._registry = context.registry
        self._lost_allocations = LostAllocations[LostCpus]("cpus", context.recorder, context.decisions)
        self._pods: dict[str, Pod] = {}
        """Pods with exclusive CPUs, by uid."""
        self._mover = ContainerMover(
            self._cpuset,
            running,
            move,
            prepare=self._prepare_move,
            period=float(config.cpu_manager_reconcile_period),
            tasks=context.tasks,
        )
        self._create_files(context, fault)
        self._division: Division | None = None
        self._system: SystemProcesses | None = None
        self.policy: StaticCpuPolicy | None = None
        if config.cpu_manager_policy == STATIC:
            check_reserved_amount(reserved)
            self._options = StaticOptions.from_config(config)
            self.policy = self._make_policy(CpuState(0))
            self._metrics = CpuMetrics(context.registry, self.policy)

    def _create_files(self, context: NodeContext, fault: FaultPoint) -> None:
        self._file = StateFile(
            context.root / FILE_NAME,
            self._snapshot,
            name="cpu-manager-state",
            tasks=context.tasks,
            fault=fault,
        )
        self._baselines: StateFile | None = None
        if context.config.cpu_manager_policy == STATIC and context.config.gate(EXCLUSIVE_CPUS_GATE, False):
            self._baselines = StateFile(
                context.root / baselines.FILE_NAME,
                lambda: baselines.encode(self._state.baselines),
                name="cpu-manager-baselines",
                tasks=context.tasks,
                fault=fault,
            )

    def _make_policy(self, state: CpuState) -> StaticCpuPolicy:
        """Create the policy for the current machine, and set the pool of `state`."""
        topology = self._readers.topology()
        self._options.check(topology, self._config.topology_manager_policy)
        reserved = reserved_cpus(topology, self._options, self._reserved_amount, self._named)
        state.pool = topology.cpus & ~(reserved if self._options.strict_reservation else 0)
        return StaticCpuPolicy(
            topology, reserved, self._options, self._numa, state, pod_level=self._pod_level
        )

    def divide_shared(self, division: Division) -> None:
        """Divide the CPUs that are not exclusive among the active pods."""
        self._division = division
        division.register(self._registry)

    def keep_off(self, system: SystemProcesses) -> None:
        """Keep system processes off exclusive CPUs."""
        self._system = system

    def driver_connected(self, driver: str) -> None:
        """Report a DRA driver that gives CPUs to containers, too: it does not know of exclusive CPUs."""
        if self.policy is None or driver != CPU_DRIVER:
            return
        message = (
            f"the DRA driver {driver} and cpuManagerPolicy static may give the same CPUs; "
            "set cpuManagerPolicy to none, or remove the driver"
        )
        log.warning("%s", message)
        self._recorder.node(WARNING, "CPUDriverClash", message)
        self._decisions.record("cpus", "clash", message, {"driver": driver})

    @property
    def _state(self) -> CpuState:
        assert self.policy is not None
        return self.policy.state

    # Life

    async def start(self) -> None:
        """Read the state of an earlier agent, keep its valid assignments, and start to move containers."""
        checkpoint = self._file.read(decode, self._damaged)
        if checkpoint is not None:
            self._restore(checkpoint)
        await self._file.start()
        # A policy that changed, or a damaged file, must not be found again after a crash.
        await self._file.flush()
        if self._baselines is not None:
            self._restore_baselines(self._baselines)
            await self._baselines.start()
        if self.policy is not None:
            self._mover.start()
            self._file.changed()
        if self._division is not None:
            self._division.start(self._mover.changed)

    async def stop(self) -> None:
        """Write the state. Containers keep their CPUs."""
        if self._division is not None:
            await self._division.stop()
        await self._mover.stop()
        if self._system is not None and self.policy is not None:
            # Without the agent nobody keeps the processes off, or lets them back.
            self._system.allow(self.policy.topology.cpus)
        if self._baselines is not None:
            await self._baselines.stop()
        await self._file.stop()

    def _damaged(self, fault: str) -> None:
        self._lost_allocations.state_changed(f"{fault}; choosing exclusive CPUs for running pods again")

    def _restore_baselines(self, file: StateFile) -> None:
        """Know again what containers started with; without the file, it is what they have now."""
        found = file.read(baselines.decode, lambda fault: log.error("%s", fault))
        for uid, containers in (found or {}).items():
            for name, cpus in containers.items():
                if cpus and cpus & ~(self._state.held(uid, name) or 0) == 0:
                    self._state.baselines.setdefault(uid, {})[name] = cpus

    def _restore(self, checkpoint: CpuCheckpoint) -> None:
        policy = self.policy
        if policy is None:
            if checkpoint.policy_name != NONE:
                log.warning(
                    "%s: its CPUs are ignored: it is of the policy %s, and the policy is now none",
                    self._file.path,
                    checkpoint.policy_name,
                )
            return
        restored: RestoredCpus = restore(
            checkpoint,
            online=policy.topology.cpus,
            reserved=policy.reserved,
            pool=policy.state.pool,
            pod_level=self._pod_level,
        )
        for uid, name, cpus in restored.state.entries():
            policy.state.assign(uid, name, cpus)
        policy.state.pods.update(restored.state.pods)
        if checkpoint.policy_name != STATIC:
            restored.changes.append(f"the policy was {checkpoint.policy_name!r}")
        self._lost_allocations.restored(
            restored.changes,
            {
                f"{one.container} of pod {one.pod_uid} had {one.cpus}: {one.reason}": one
                for one in restored.lost
            },
        )

    def _snapshot(self) -> bytes:
        if self.policy is None:
            return encode(CpuCheckpoint(NONE, pod_entries={} if self._pod_level else None))
        return encode(self._checkpoint(self.policy.state))

    def _checkpoint(self, state: CpuState) -> CpuCheckpoint:
        entries: dict[str, dict[str, str]] = {}
        for uid, name, cpus in state.entries():
            entries.setdefault(uid, {})[name] = cpu_sets.text(cpus)
        pods = {uid: cpu_sets.text(cpus) for uid, cpus in state.pods.items()} if self._pod_level else None
        return CpuCheckpoint(STATIC, cpu_sets.text(state.shared), entries, pod_entries=pods)

    # Pods

    def concerns(self, pod: Pod) -> bool:
        """Return whether a container of the pod requests exclusive CPUs; updates the machine's online CPUs
        first.
        """
        policy = self.policy
        if policy is None or not (
            policy.pod_count(pod) or any(policy.count(pod, one) for one in pod.all_containers)
        ):
            return False
        self._refresh_machine()
        return True

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Return hints for the whole pod."""
        return self.policy.pod_hints(pod) if self.policy is not None else None

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        """Return hints for one container."""
        return self.policy.container_hints(pod, container) if self.policy is not None else None

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Assign CPUs to the container. Raises `AllocationError`."""
        if self.policy is None or not self.policy.count(pod, container):
            return
        held = self.policy.state.held(pod.uid, container.name)
        self._metrics.requests.inc()
        try:
            self.policy.allocate(pod, container, hint)
        except AllocationError:
            self._metrics.count_failure(whole_cores=self._options.full_pcpus)
            raise
        now = self.policy.state.held(pod.uid, container.name)
        if now is not None:
            self._metrics.count_allocation(now, whole_cores=self._options.full_pcpus, new=held is None)
        if now is not None:
            self._pods[pod.uid] = pod
        if now is not None and held is None:
            nodes = None if hint.mask is None else self._numa.ids(hint.mask)
            inputs = {"cpus": cpu_sets.text(now), "shared": cpu_sets.text(self.policy.state.shared)}
            self._decisions.pod(
                pod, "cpus", "allocated", "", {**inputs, "numa": nodes}, container=container.name
            )
            self._changed()

    def count_failure(self, pod: Pod, lacking: Collection[str]) -> bool:
        """Count an allocation that failed because the node lacks CPUs for the pod; return whether it does."""
        failed = CPU in lacking and self.concerns(pod)
        if failed:
            self._metrics.requests.inc()
            self._metrics.count_failure(whole_cores=self._options.full_pcpus)
        return failed

    def allocate_pod(self, pod: Pod, hint: Hint) -> None:
        """Assign the CPUs of the pod's pod-level resources. Raises `AllocationError`."""
        policy = self.policy
        if policy is None or not policy.pod_count(pod) or pod.uid in policy.state.pods:
            return
        try:
            policy.allocate_pod(pod, hint)
        except AllocationError:
            self._metrics.count_pod_failure()
            raise
        self._pods[pod.uid] = pod
        cpus = policy.state.pods[pod.uid]
        self._metrics.count_pod_allocation(
            [policy.count(pod, one) > 0 for one in pod.all_containers],
            one_cache=policy.topology.in_one_cache(cpus),
        )
        nodes = None if hint.mask is None else self._numa.ids(hint.mask)
        inputs = {"cpus": cpu_sets.text(cpus), "shared": cpu_sets.text(policy.state.shared), "numa": nodes}
        parts = {name: cpu_sets.text(of) for name, of in policy.state.of_pod(pod.uid).items()}
        self._decisions.pod(pod, "cpus", "allocated", "", {**inputs, "containers": parts})
        self._changed()

    @property
    def pod_uids(self) -> Collection[str]:
        """Return the uids of pods with exclusive CPUs."""
        return self.policy.state.pod_uids if self.policy is not None else ()

    def release(self, pod_uid: str) -> None:
        """Return the CPUs of a terminated pod to the shared pool."""
        self._lost_allocations.forget(pod_uid)
        self._mover.forget(pod_uid)
        self._pods.pop(pod_uid, None)
        if self.policy is not None and pod_uid in self.policy.state.pod_uids:
            self.policy.release(pod_uid)
            if self._baselines is not None:
                self._baselines.changed()
            self._changed()

    def collect(self, keep: Collection[str]) -> None:
        """Release the CPUs of pods whose uid is not in `keep`."""
        for uid in [uid for uid in self.pod_uids if uid not in keep]:
            log.info("CPUs of pod %s, which no longer exists, are shared again", uid)
            self.release(uid)

    def adopted(self, pod: Pod, choose: Callable[[Pod, Container], Hint]) -> None:
        """Assign CPUs to containers of a running pod that lost theirs; without free CPUs they share.

        `choose` asks the topology policy. The pod is never rejected.
        """
        lost = self._lost_allocations.adopt(pod.uid) if self.policy is not None else None
        if self.policy is None or lost is None:
            return
        self._pods[pod.uid] = pod
        self._name_containers(pod)
        state = self.policy.state
        if pod.uid in state.pods:
            return
        if manages_whole_pod(self._config, pod) and self.policy.pod_count(pod):
            self._reassign_pod(pod, next(iter(lost.values()), None))
            self._changed()
            return
        beside = 0
        for container in pod.all_containers:
            count = self.policy.count(pod, container)
            # It has ended by now, and would hold CPUs for nothing.
            ends = container in pod.init_containers and not container.is_sidecar
            if not count or ends:
                continue
            held = state.held(pod.uid, container.name)
            # Init containers and app containers may share CPUs, two that run at the same time may not: a
            # state file may say so nevertheless.
            if held is not None and held & beside:
                text = cpu_sets.text(held)
                lost[container.name] = LostCpus(
                    pod.uid, container.name, text, "another container has some of them"
                )
                state.release(pod.uid, container.name)
                held = None
            if held is None:
                self._reassign(pod, container, choose, lost.get(container.name))
            beside |= state.held(pod.uid, container.name) or 0
        self._complete_resize(pod)
        self._changed()

    def _name_containers(self, pod: Pod) -> None:
        """Give a pod the CPUs that a state file of version 1 lists by the ids of its running containers."""
        for one in self._running():
            held = self._state.held(one.id, "") if one.pod_uid == pod.uid else None
            if held is not None:
                self._state.release_pod(one.id)
                self._state.assign(one.pod_uid, one.name, held)

    def resize(self, old: Pod, new: Pod, align: Align, *, whole_pod: bool) -> None:
        """Give containers of a running pod the CPUs of its new amounts. Raises `CannotResize`, and changes
        nothing then.
        """
        if self.policy is None or self._baselines is None:
            return
        if any(self.policy.count(new, container) for container in new.all_containers):
            self._refresh_machine()
        for name, cpus in resized_cpus(self.policy, old, new, align, whole_pod=whole_pod).items():
            inputs = {
                "before": cpu_sets.text(self._state.held(new.uid, name) or 0),
                "cpus": cpu_sets.text(cpus),
                "startedWith": cpu_sets.text(self._state.baseline(new.uid, name) or 0),
            }
            self._state.resize(new.uid, name, cpus)
            self._decisions.pod(new, "cpus", "resized", "", inputs, container=name)
        self._pods[new.uid] = new
        self._baselines.changed()
        self._changed()

    def _complete_resize(self, pod: Pod) -> None:
        """Give a running pod the CPUs of a resize that a kubelet admitted: a kubelet assigns none."""
        assert self.policy is not None
        fewer = fewer_than_requested(self.policy, pod) if self._baselines is not None else {}
        if not fewer:
            return
        try:
            found, why = resized_cpus(self.policy, pod, pod, lambda *_: ANYWHERE, whole_pod=False), ""
        except CannotResize as error:
            found, why = {}, f": {error}"
        for name, held in fewer.items():
            before = cpu_sets.text(held)
            text = f"keeps CPUs {before}, fewer than it requests"
            if name in found:
                self._state.resize(pod.uid, name, found[name])
                text = f"was resized, and has CPUs {cpu_sets.text(found[name])} instead of {before}"
            self._lost_allocations.reassigned(pod, name, text, why, {"before": before}, found=name in found)

    def _reassign_pod(self, pod: Pod, lost: LostCpus | None) -> None:
        """Choose CPUs for the pod-level resources of a running pod, and report them."""
        try:
            self.allocate_pod(pod, ANYWHERE)
            found, text = True, f"now has CPUs {cpu_sets.text(self._state.pods[pod.uid])}"
        except AllocationError as error:
            found, text = False, f"shares CPUs from now on: {error}"
        why = f" because its CPUs are lost: {lost.reason}" if lost is not None else ""
        inputs = {"reason": lost.reason} if lost is not None else {}
        self._lost_allocations.reassigned(pod, "", text, why, inputs, found=found)

    def _reassign(
        self, pod: Pod, container: Container, choose: Callable[[Pod, Container], Hint], lost: LostCpus | None
    ) -> None:
        """Choose CPUs for a running container, and report them."""
        try:
            self.allocate(pod, container, choose(pod, container))
            cpus = cpu_sets.text(self._state.held(pod.uid, container.name) or 0)
            found, text = True, f"now has CPUs {cpus}"
        except AllocationError as error:
            found, text = False, f"shares CPUs from now on: {error}"
        why = f" instead of {lost.cpus}: {lost.reason}" if lost is not None else ""
        inputs = {"before": lost.cpus, "reason": lost.reason} if lost is not None else {}
        self._lost_allocations.reassigned(pod, container.name, text, why, inputs, found=found)

    async def flush(self) -> None:
        """Wait until the current state is on disk and other containers have left exclusive CPUs.

        Waits at most `SETTLE_SECONDS` for a runtime that does not answer.
        """
        await self._write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._mover.wait_done()

    async def wait_placed(self, pod_uid: str) -> None:
        """Wait until the current state is on disk and a pod with exclusive CPUs is on them.

        Raises `Refused` if the runtime does not move its containers in time.
        """
        await self._write()
        if pod_uid not in self.pod_uids:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._mover.wait_placed(pod_uid)
        except TimeoutError:
            raise Refused(
                f"some containers are not on their CPUs after {SETTLE_SECONDS:.0f} s", subject="CRI runtime"
            ) from None

    async def _write(self) -> None:
        await self._file.flush()
        if self._baselines is not None:
            await self._baselines.flush()

    # Containers

    def cpuset(self, pod: Pod, container: str) -> str:
        """Return the cpuset of a container that is about to be created; empty for any CPU."""
        # Before the answer: the pool of the container's pod may have grown or shrunk since the last round.
        self._divide()
        cpus = self._cpuset(pod.uid, container)
        if cpus:
            # The mover compares what was created with what is right after later changes.
            self._mover.created(pod.uid, container, cpus)
        return cpus

    def _cpuset(self, pod_uid: str, container: str) -> str:
        if self.policy is None:
            return ""
        state = self.policy.state
        held = state.held(pod_uid, container)
        if held is not None:
            return cpu_sets.text(held)
        if self._division is not None and state.shared:
            return cpu_sets.text(self._division.shares.of(pod_uid))
        # With strict-cpu-reservation all CPUs but the reserved ones can become exclusive. A container without
        # a cpuset runs on all CPUs, including exclusive ones, so it gets the reserved CPUs instead.
        return cpu_sets.text(state.shared or self.policy.reserved)

    def is_exclusive(self, pod: Pod, container: str | None = None) -> bool:
        """Return whether the container, or one of the pod's, has exclusive CPUs and so no CFS quota."""
        if self.policy is None or not self._config.gate(QUOTA_GATE, True):
            return False
        held = self.policy.state.of_pod(pod.uid)
        if self._pod_level and has_pod_level_resources(pod):
            own = {one.name for one in pod.all_containers if one.name in held and self.policy.count(pod, one)}
            return len(own) == len(pod.all_containers) if container is None else container in own
        return bool(held) if container is None else container in held

    def containers_changed(self) -> None:
        """Check containers after some started or stopped: one created before the pool changed may be on wrong
        CPUs.
        """
        if self.policy is not None:
            self._mover.wake()

    def _changed(self) -> None:
        self._file.changed()
        self._mover.changed()

    def _prepare_move(self) -> None:
        self._divide()
        if self._system is not None and self.policy is not None:
            self._system.allow(self.policy.state.shared or self.policy.reserved)

    def _divide(self) -> None:
        if self.policy is not None and self._division is not None:
            self._division.divide(self.policy)

    # The machine

    def _refresh_machine(self) -> None:
        """Update the CPUs after some went offline or came online."""
        assert self.policy is not None
        try:
            # Reading one small file; the whole topology is read only after a change.
            if self._readers.online() == self.policy.topology.cpus:
                return
            policy = self._make_policy(CpuState(0))
        except KubengineError as error:
            log.warning("the machine's CPUs changed, and the new set cannot be used: %s", error)
            return
        old, started = self._checkpoint(self._state), self._state.baselines
        self.policy = policy
        self._metrics.policy = policy
        self._restore(old)
        for uid, containers in started.items():
            kept = {name: one for name, one in containers.items() if self._state.held(uid, name) is not None}
            self._state.baselines[uid] = kept
        for uid in self._lost_allocations.pod_uids:
            if uid in self._pods:
                self._lost_allocations.adopt_again(uid)
                self.adopted(self._pods[uid], lambda pod, container: ANYWHERE)
        self._changed()

    # Questions

    def describe(self) -> dict[str, Any]:
        """Describe the machine's CPUs and their containers as JSON-able values. Raises `Refused`."""
        policy, offline = self.policy, self._readers.offline()
        if policy is None:
            return describe_machine(self._readers.topology(), offline)
        pools = self._division.shares.describe() if self._division is not None else []
        return describe_policy(policy, offline, pools, self._pods)
