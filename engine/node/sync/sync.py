"""Brings a pod to run and keeps it running: computes the next actions and carries them out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.api.duration import Duration
from engine.api.errors import InvalidInput, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.lifecycle import PodEnd
from engine.api.pod import Container, Pod
from engine.cri.client import NotFound
from engine.cri.records import CREATED, EXITED, ContainerRecord
from engine.node.images.pull import StartRefused
from engine.node.logs.log_links import remove_log_link
from engine.node.pod.life import LifeEvent
from engine.node.pod.state import PodState
from engine.node.pod.waiting import Waiting
from engine.node.spec.container_hash import container_hash
from engine.node.sync.actions import PodActions, compute_pod_actions
from engine.node.sync.resizing import carry_out
from engine.node.sync.retries import retry_seconds
from engine.node.sync.services import Services
from engine.node.sync.start_slots import StartSlot
from engine.node.sync.starting import (
    ClaimsRefused,
    runtime_handler,
    sandbox_config,
    start_container,
    start_sandbox,
)
from engine.node.sync.stopping import grace_seconds, remove_dead, stop_container, stop_pod
from engine.node.volumes.pod_volumes import used_volumes
from engine.node.volumes.refusals import AttachLimitExceeded
from engine.wire import cri_v1_pb2 as cri


@dataclass(frozen=True, slots=True)
class SyncStep:
    """The result of one sync.

    `delay` is the number of seconds until the next one (None: when something changes). `event` and `end`
    tell what has become of the pod. `idle` means that there was nothing to do.
    """

    delay: float | None = None
    event: LifeEvent | None = None
    end: PodEnd | None = None
    idle: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the next sync follows at once."""
        return self.event is None and self.delay == 0


class PodSync:
    """Sync one pod. `publish` is called when the status may have changed, `made_room` when the pod holds
    less.
    """

    def __init__(
        self,
        hand: PodState,
        services: Services,
        *,
        publish: Callable[[], Awaitable[None]],
        made_room: Callable[[], None],
    ) -> None:
        self._hand = hand
        self._services = services
        self._publish = publish
        self._made_room = made_room
        self._kept: Pod | None = None
        self._volumes: Mapping[str, Path] | None = None
        self._sandbox: cri.PodSandboxConfig | None = None
        self._cgroup_parent = ""
        self._refused: dict[str, tuple[int, float]] = {}

    async def step(self) -> SyncStep:
        """Run one sync."""
        hand, services = self._hand, self._services
        deadline = self._deadline()
        if deadline is not None and deadline <= 0:
            text = "Pod was active on the node longer than the specified deadline"
            services.context.recorder.pod(hand.pod, NORMAL, "DeadlineExceeded", text)
            return SyncStep(event=LifeEvent.FAIL, end=PodEnd("DeadlineExceeded", text))
        idle = hand.resize is None and not hand.waiting
        await self._resize()
        await self._keep(hand.pod)
        actions = compute_pod_actions(
            hand.pod,
            services.runtime.watch.pod(hand.pod.uid),
            health=lambda c: services.probes.health(hand.pod.uid, c),
            spec_hash=container_hash,
        )
        if actions.finished:
            await self._finish(actions)
            return SyncStep(event=LifeEvent.FINISH)
        try:
            await self._prepare()
        except AttachLimitExceeded as refused:
            services.context.recorder.pod(hand.pod, WARNING, refused.reason, refused.message)
            services.metrics.rejected(refused.reason)
            end = PodEnd(refused.reason, f"Pod was rejected: {refused.message}")
            return SyncStep(event=LifeEvent.FAIL, end=end)
        await self._prepare_claims(actions)
        delay = None if actions.nothing else await self._act(actions)
        if actions.nothing:
            hand.waiting.clear()
            self._sandbox = None  # frees some KiB; built again for the next container
        await remove_dead(services.runtime.watch.pod(hand.pod.uid), services)
        delay = min((d for d in (delay, deadline) if d is not None), default=None)
        return SyncStep(delay, idle=idle and actions.nothing)

    def _deadline(self) -> float | None:
        """Return the seconds until `activeDeadlineSeconds` ends the pod, or None without a deadline."""
        seconds = self._hand.pod.spec.active_deadline_seconds
        return None if seconds is None else self._hand.started_at + seconds - self._services.context.clock()

    async def _resize(self) -> None:
        """Carry out a pending resize. Meanwhile the source may have asked for another resize or
        another spec.
        """
        hand = self._hand
        before, resize = hand.pod, hand.resize
        if resize is None:
            return
        resized = await carry_out(before, resize, self._services, self._publish)
        if resized is None:
            return
        await self._keep(resized)
        if hand.pod is before:
            resized.status = before.status
            hand.pod = resized
            self._services.volumes.manager.described(resized)
        if hand.resize is resize:
            hand.resize = None
        self._made_room()

    async def _keep(self, pod: Pod) -> None:
        """Record the accepted pod before anything of it is created."""
        if self._kept is not pod:
            await asyncio.to_thread(self._services.records.accepted.keep, pod)
            self._kept = pod

    async def _finish(self, actions: PodActions) -> None:
        """Stop the sandbox and release the cgroup once every container has ended for good."""
        pod, services = self._hand.pod, self._services
        if actions.kill_pod:
            await stop_pod(
                pod, services.runtime.watch.pod(pod.uid), services, lambda c: grace_seconds(pod, c)
            )
        self._hand.waiting.clear()
        await services.allocations.claims.unprepare(pod.uid)
        services.cgroups.remove_pod(pod.uid)

    async def _prepare(self) -> None:
        """Create the cgroup and the volumes once, and further volumes when an added container mounts them.

        A restarted agent does this again and finds them in place.
        """
        pod, services = self._hand.pod, self._services
        if self._volumes is None:
            self._cgroup_parent = services.cgroups.create_pod(pod)
        elif all(volume.name in self._volumes for volume in used_volumes(pod)):
            return
        self._volumes = await services.volumes.manager.set_up(pod)

    async def _prepare_claims(self, actions: PodActions) -> None:
        """Before a sandbox, since its containers may need what drivers make for the pod; and where the record
        of an earlier agent is lost."""
        pod, claims = self._hand.pod, self._services.allocations.claims
        if actions.create_sandbox or not claims.knows(pod):
            try:
                await claims.prepare(pod)
            except (InvalidInput, Refused) as error:
                raise ClaimsRefused(f"Failed to prepare dynamic resources: {error}") from error

    async def _act(self, actions: PodActions) -> float | None:
        pod, services = self._hand.pod, self._services
        record = services.runtime.watch.pod(pod.uid)
        ended = {c.name: c for c in reversed(record.containers) if c.state == EXITED}
        if actions.kill_pod:
            await stop_pod(pod, record, services, lambda c: grace_seconds(pod, c))
        for kill in actions.kill:
            grace = grace_seconds(pod, kill.container, kill.liveness)
            message = f"{kill.message}, will be restarted" if kill.liveness else kill.message
            await stop_container(pod, kill.container, services, grace, message)
        killed = {kill.container.name: kill.message for kill in actions.kill}
        await self._reset(actions.reset)
        handler = await runtime_handler(pod, services, None if actions.create_sandbox else record.sandbox)
        async with StartSlot(services.starts.slots, self._publish) as slot:
            if actions.create_sandbox and self._sandbox is not None:
                self._cgroup_parent = services.cgroups.create_pod(pod)  # it may have gone with the sandbox
            if actions.create_sandbox or self._sandbox is None:
                self._sandbox = sandbox_config(pod, services, actions.attempt, self._cgroup_parent, handler)
            if actions.create_sandbox:
                await start_sandbox(pod, services, self._sandbox, handler)
            delays = [
                await self._start(container, slot, ended.get(container.name), killed.get(container.name, ""))
                for container in actions.start
            ]
        waits = [delay for delay in delays if delay is not None]
        return 0.0 if None in delays or not delays else min(waits)

    async def _reset(self, containers: list[ContainerRecord]) -> None:
        """End and remove all containers of a pod that starts again in its sandbox; logs stay."""
        pod, services, restarts = self._hand.pod, self._services, self._hand.restarts
        for container in containers:
            if container.running:
                text = f"Stopping container {container.name}"
                await stop_container(pod, container, services, 0, text)
            with contextlib.suppress(NotFound):
                await services.runtime.client.remove_container(container.id)
            remove_log_link(services.runtime.watch.pod(pod.uid), container)
            restarts[container.name] = max(restarts.get(container.name, 0), container.attempt + 1)
            services.runtime.watch.forget(pod.uid, [container.id])
            await self._publish()

    async def _start(
        self, container: Container, slot: StartSlot, ended: ContainerRecord | None, killed: str
    ) -> float | None:
        """Start one container; return None, or the seconds until the next attempt if it did not start.

        `ended` is the newest container of that name that had ended when the actions were computed. As in the
        kubelet, a container that was just killed for a restart does not count yet; `killed` is the reason
        for the kill.
        """
        pod, services, name = self._hand.pod, self._services, container.name
        key = f"{pod.uid}/{name}"
        now = services.context.clock()
        not_before = self._refused.get(name, (0, 0.0))[1]
        if not_before > now:
            return not_before - now
        if ended is not None:
            wait = services.starts.backoff.remaining(key, ended.finished_at, now)
            if wait > 0:
                self._back_off(container, services.starts.backoff.delay(key))
                return wait
            services.starts.backoff.attempt(key, ended.finished_at, now)
        assert self._volumes is not None
        assert self._sandbox is not None
        least = max(self._hand.restarts.get(name, 0), self._hand.past.get(name, 0))
        before = services.runtime.watch.pod(pod.uid).container(name)
        try:
            with services.starts.counts.container(pod, container):
                await start_container(pod, container, services, self._volumes, self._sandbox, slot, least)
        except StartRefused as refused:
            services.runtime.watch.doubt()
            return self._refuse(container, refused)
        self._hand.waiting.pop(name, None)
        self._refused.pop(name, None)
        if before is not None and before.state != CREATED:
            self._restarted(container, before, killed)
        return None

    def _restarted(self, container: Container, before: ContainerRecord, killed: str) -> None:
        pod, services = self._hand.pod, self._services
        reason = killed or f"{before.reason or 'it ended'} with exit code {before.exit_code}"
        inputs = {
            "id": before.id,
            "exitCode": before.exit_code,
            "startedAt": before.started_at,
            "finishedAt": before.finished_at,
            "attempt": before.attempt,
            "restartPolicy": pod.spec.restart_policy,
            "backOff": services.starts.backoff.delay(f"{pod.uid}/{container.name}"),
        }
        services.context.decisions.pod(pod, "restart", "restarted", reason, inputs, container=container.name)

    def _refuse(self, container: Container, refused: StartRefused) -> float:
        """Report why the start failed, once while the reason stays; return the seconds until the next
        attempt.
        """
        pod, services, name = self._hand.pod, self._services, container.name
        if self._hand.waiting.get(name) != refused.waiting:
            refused.say(services.context.recorder, pod, name)
        self._hand.waiting[name] = refused.waiting
        times = self._refused.get(name, (0, 0.0))[0] + 1
        wait = retry_seconds(times)
        if refused.waiting.reason != "ErrImagePull":
            wait = max(wait, services.images.retry_in(pod, container))
        self._refused[name] = times, services.context.clock() + wait
        return wait

    def _back_off(self, container: Container, delay: float) -> None:
        waiting = self._hand.waiting
        if waiting.get(container.name, Waiting("")).reason == "CrashLoopBackOff":
            return
        meta = self._hand.pod.metadata
        whose = f"{meta.name}_{meta.namespace}({meta.uid})"
        text = f"back-off {Duration(delay)} restarting failed container={container.name} pod={whose}"
        waiting[container.name] = Waiting("CrashLoopBackOff", text)
        event = f"Back-off restarting failed container {container.name} in pod {whose}"
        self._services.context.recorder.pod(
            self._hand.pod, WARNING, "BackOff", event, container=container.name
        )
