"""Publishes the statuses of pods: computes each from the runtime's record, and passes changes on."""

from __future__ import annotations

from pathlib import Path

from engine.api.pod import Pod
from engine.api.status import ResourceAmounts
from engine.cgroups.formulas.containers import ContainerResources, status_resources
from engine.cri.records import EXITED, ContainerRecord, PodRecord
from engine.host.node_context import NodeContext
from engine.node.nodeinfo.addresses import HostAddresses
from engine.node.pod.life import LifeState, PodState
from engine.node.pod.resize import ResizeState
from engine.node.sync.pod_metrics import PodMetrics
from engine.node.sync.services import (
    Allocations,
    PodChanged,
    Probes,
    ResourceAccounting,
    RuntimeServices,
)
from engine.node.sync.status import FAILED, SUCCEEDED, StatusInputs, pod_status
from engine.node.sync.termination_message import read_messages


class StatusPublisher:
    """Publish the statuses of a node's pods."""

    def __init__(
        self,
        context: NodeContext,
        runtime: RuntimeServices,
        addresses: HostAddresses,
        allocations: Allocations,
        admission: ResourceAccounting,
        probes: Probes,
        changed: PodChanged,
        metrics: PodMetrics,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._addresses = addresses
        self._allocations = allocations
        self._admission = admission
        self._probes = probes
        self._changed = changed
        self._metrics = metrics
        self._logs = Path(context.config.pod_logs_dir)
        self._health = context.config.gate("ResourceHealthStatus", True)
        self._stop_signals = context.config.gate("ContainerStopSignals", False)
        self._image_volumes = context.config.gate("ImageVolumeWithDigest", False)

    async def publish(self, state: PodState) -> None:
        """Compute the status from the runtime and the worker's state, and publish it if it changed."""
        # Containers of an ended pod are removed in time, and a status without them would say less.
        if state.final_published and state.pod.status.phase in (SUCCEEDED, FAILED):
            return
        record = self._runtime.watch.pod(state.pod.uid)
        ended = [c for c in record.containers if c.state == EXITED]
        if ended or state.messages:
            state.messages = await read_messages(
                state.pod, ended, state.messages, root=self._context.root, logs=self._logs
            )
        # Read only now, since the pod may have ended during the wait above. A status computed from here on
        # shows the end, so it is the last one; an earlier one is not final.
        state.final_published = state.life.final
        pod = state.pod
        self._probes.observed(pod, record, self._addresses.ips)
        self._admission.observed(pod, record)
        current = pod_status(pod, record, self._inputs(state, record))
        current.observed_generation = _generation(state)
        # Most syncs end here: an equal status goes neither to the API server nor to disk.
        if current != pod.status:
            pod.status = current
            self._probes.remember(pod)
            self._metrics.status_published(pod, self._context.clock())
            self._changed(pod, may_run=state.life.holds)

    def _inputs(self, state: PodState, record: PodRecord) -> StatusInputs:
        pod, life, end = state.pod, state.life, state.life.end
        uid, sandbox, probes, allocations = pod.uid, record.sandbox, self._probes, self._allocations
        rejected = end is not None and life.state in (LifeState.ADMITTING, LifeState.REJECTED)
        resize = state.resize.condition if state.resize is not None else None
        return StatusInputs(
            now=self._context.clock(),
            runtime_name=self._runtime.name,
            host_ips=self._addresses.ips,
            ready=lambda c: probes.ready(uid, c),
            started=lambda c: probes.health(uid, c).started,
            waiting=state.waiting,
            waiting_reason=state.waiting_reason if life.state is LifeState.ADMITTING else None,
            end=end,
            devices=lambda container: allocations.devices.health(uid, container) if self._health else {},
            claimed=lambda container: (
                allocations.claims.device_status(pod, container)
                if self._health and pod.spec.resource_claims
                else ()
            ),
            start_time=state.started_at,
            terminated=rejected or life.stopped,
            resources=lambda container: _resources(pod, container),
            extra_conditions=(resize,) if resize is not None else (),
            message=lambda container: state.messages.get(container.id, ""),
            recursive_read_only=sandbox is not None
            and self._runtime.health.features.of_handler(sandbox.handler).recursive_read_only_mounts,
            reset=state.restarts,
            restarting=state.restarting,
            stop_signals=self._stop_signals,
            image_volumes=self._image_volumes,
        )


def _generation(state: PodState) -> int:
    """Return the generation that the status reflects; a resize that has not been examined yet is not part of
    it.
    """
    if state.resize is not None and state.resize.state is ResizeState.PROPOSED:
        return state.pod.status.observed_generation
    return state.wanted.metadata.generation


def _resources(pod: Pod, record: ContainerRecord) -> ResourceAmounts | None:
    """Return the resources that a running container has according to its runtime."""
    container = next((c for c in pod.all_containers if c.name == record.name), None)
    if container is None or record.resources is None or not record.running:
        return None
    shares, quota, period, memory = record.resources
    return status_resources(
        container,
        ContainerResources(
            cpu_shares=shares, cpu_quota=quota, cpu_period=period, memory_limit_in_bytes=memory
        ),
    )
