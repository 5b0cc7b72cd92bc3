"""Keeps the status of one pod current and notifies its listeners."""

from __future__ import annotations

from pathlib import Path

from engine.api.status import ResourceAmounts
from engine.cgroups.formulas.containers import ContainerResources
from engine.cgroups.resize import status_resources
from engine.cri.records import ContainerRecord, PodRecord
from engine.node.pod.life import LifeState
from engine.node.pod.resize import ResizeState as Resizing
from engine.node.pod.state import PodState
from engine.node.sync.services import Services
from engine.node.sync.status import FAILED, SUCCEEDED, StatusInputs, pod_status
from engine.node.sync.termination_message import TerminationMessages


class StatusPublisher:
    """Publish a pod's status; `pod.status` is the last published one and stays once the pod has ended."""

    def __init__(self, hand: PodState, services: Services) -> None:
        self._hand = hand
        self._services = services
        self._last_words = TerminationMessages(
            root=services.context.root, logs=Path(services.context.config.pod_logs_dir)
        )
        self._final = hand.life.final

    async def publish(self) -> None:
        """Compute the status from the runtime and the worker's state, and publish it if it changed."""
        hand, services = self._hand, self._services
        if hand.pod.status.phase in (SUCCEEDED, FAILED) and self._final:
            return
        record = services.runtime.watch.pod(hand.pod.uid)
        await self._last_words.read(hand.pod, record)
        self._final = hand.life.final
        services.probes.observed(hand.pod, record)
        services.admission.observed(hand.pod, record)
        current = pod_status(hand.pod, record, self._inputs(record))
        current.observed_generation = self._generation()
        if current != hand.pod.status:
            hand.pod.status = current
            services.probes.remember(hand.pod)
            services.metrics.looked_at(hand.pod, services.context.clock())
            services.control_plane.pod_changed(hand.pod, may_run=hand.life.holds)

    def _generation(self) -> int:
        """Return the generation that the status reflects; a resize that has not been examined yet is not part
        of it.
        """
        resize = self._hand.resize
        if resize is not None and resize.state is Resizing.PROPOSED:
            return self._hand.pod.status.observed_generation
        return self._hand.wanted.metadata.generation

    def _inputs(self, record: PodRecord) -> StatusInputs:
        hand, services = self._hand, self._services
        life, end, uid, sandbox = hand.life, hand.life.end, hand.pod.uid, record.sandbox
        rejected = end is not None and life.state in (LifeState.ADMITTING, LifeState.REJECTED)
        resize = hand.resize.condition if hand.resize is not None else None
        health = services.context.config.gate("ResourceHealthStatus", True)
        return StatusInputs(
            now=services.context.clock(),
            runtime_name=services.facts.runtime_name,
            host_ips=services.facts.host_ips,
            ready=lambda c: services.probes.ready(uid, c),
            started=lambda c: services.probes.health(uid, c).started,
            waiting=hand.waiting,
            waiting_reason=hand.waiting_reason if life.state is LifeState.ADMITTING else None,
            end=end,
            devices=lambda container: services.allocations.devices.health(uid, container) if health else {},
            claimed=lambda container: (
                services.allocations.claims.device_status(hand.pod, container) if health else ()
            ),
            start_time=hand.started_at,
            terminated=rejected or life.stopped,
            resources=self._resources,
            extra_conditions=(resize,) if resize is not None else (),
            message=self._last_words.of,
            recursive_read_only=sandbox is not None
            and services.runtime.health.features.of_handler(sandbox.handler).recursive_read_only_mounts,
            reset=hand.restarts,
        )

    def _resources(self, record: ContainerRecord) -> ResourceAmounts | None:
        """Return the resources that a running container has according to its runtime."""
        container = next((c for c in self._hand.pod.all_containers if c.name == record.name), None)
        if container is None or record.resources is None or not record.running:
            return None
        shares, quota, period, memory = record.resources
        return status_resources(
            container,
            ContainerResources(
                cpu_shares=shares, cpu_quota=quota, cpu_period=period, memory_limit_in_bytes=memory
            ),
        )
