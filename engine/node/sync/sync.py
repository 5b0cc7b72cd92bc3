"""Syncs a pod: brings it to run and keeps it running, stops it, and removes it.

`sync_pod` computes the next actions and carries them out; `sync_terminating` and `sync_terminated` end a pod.
The names are those of the kubelet's `podSyncer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from engine.api.decisions import Measured
from engine.api.duration import Duration, RetryDelays
from engine.api.errors import InvalidInput, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.lifecycle import PodEnd
from engine.api.pod import Container, Pod, ResourceRequirements
from engine.api.qos import is_static
from engine.cri.records import CREATED, EXITED, ContainerRecord
from engine.dra.claims import has_claims
from engine.host.tasks import Completion
from engine.node.images.pull import StartRefused
from engine.node.pod.life import LifeEvent, PodState, Waiting
from engine.node.pod.records import TerminationRecord
from engine.node.pod.resize import Resize
from engine.node.sources.pod_sink import LEAST_GRACE_SECONDS
from engine.node.spec.cri_config import container_hash
from engine.node.sync.actions import PodActions, compute_pod_actions
from engine.node.sync.operations import PodOperations
from engine.node.sync.services import Services
from engine.node.sync.starting import ClaimsRefused, StartSlot
from engine.node.sync.stopping import grace_seconds
from engine.node.volumes.pod_volumes import has_own_volumes_only, used_volumes
from engine.node.volumes.refusals import AttachLimitExceeded
from engine.wire import cri_v1_pb2 as cri

log = logging.getLogger("kubengine.pods")

RETRIES = RetryDelays(1.0, 10.0)


def retry_seconds(failures: int) -> float:
    """Return the delay in seconds after so many failures in a row."""
    return RETRIES.after(failures)


class SyncResult(msgspec.Struct, frozen=True):
    """Hold the result of one sync.

    `delay` is the number of seconds until the next one (None: when something changes). `event` and `end`
    tell what has become of the pod. `idle` means that there was nothing to do.
    """

    delay: float | None = None
    event: LifeEvent | None = None
    end: PodEnd | None = None
    idle: bool = False

    @property
    def goes_on(self) -> bool:
        """Tell whether the next sync follows at once."""
        return self.event is None and self.delay == 0


class PodSync:
    """Sync one pod. `on_release` is called when the pod holds less.

    `recorded` tells whether the termination record says that the pod has ended for good; `volumes_removed` is
    done when it has no volume left.
    """

    def __init__(
        self,
        state: PodState,
        services: Services,
        operations: PodOperations,
        *,
        on_release: Callable[[], None],
    ) -> None:
        self.recorded = state.life.final
        self.volumes_removed = Completion()
        self._state = state
        self._services = services
        self._operations = operations
        self._on_release = on_release
        self._accepted: Pod | None = None
        self._volumes: Mapping[str, Path] | None = None
        self._sandbox: cri.PodSandboxConfig | None = None
        self._cgroup_parent = ""
        self._refused: dict[str, tuple[int, float]] = {}
        self._failed: dict[str, tuple[str, ResourceRequirements | None]] = {}
        self._stopping = self._released = False
        # The runtime may have carried out a call that failed, for example when its answer was lost.
        self._in_doubt = False
        self._ended: dict[str, tuple[str, float]] = {}

    async def publish(self) -> None:
        """Publish the status of the pod."""
        await self._operations.statuses.publish(self._state)

    async def sync_pod(self) -> SyncResult:
        """Bring the pod one step closer to its spec: resize it, start its sandbox, start or kill containers.

        Each call acts on what the runtime holds at its beginning, so that a restarted agent continues where
        the last one stopped.
        """
        try:
            return await self._advance()
        except BaseException:
            self._in_doubt = True
            raise

    async def _advance(self) -> SyncResult:
        state, services = self._state, self._services
        deadline = self._deadline()
        if deadline is not None and deadline <= 0:
            text = "Pod was active on the node longer than the specified deadline"
            services.context.recorder.pod(state.pod, NORMAL, "DeadlineExceeded", text)
            return SyncResult(event=LifeEvent.FAIL, end=PodEnd("DeadlineExceeded", text))
        if self._in_doubt:
            await services.runtime.watch.reread_pod(state.pod.uid)
            self._in_doubt = False
        # A status shows a resize and the reasons for waiting, so it is published once more after they have
        # gone.
        idle = state.resize is None and not state.waiting
        if state.resize is not None:
            await self._resize(state.resize)
        await self._accept(state.pod)
        actions = compute_pod_actions(
            state.pod,
            services.runtime.watch.pod(state.pod.uid),
            health=lambda c: services.probes.health(state.pod.uid, c),
            spec_hash=container_hash,
            restarting=state.restarting,
        )
        if actions.finished:
            await self._finish(actions)
            return SyncResult(event=LifeEvent.FINISH)
        try:
            await self._prepare()
        except AttachLimitExceeded as refused:
            services.context.recorder.pod(state.pod, WARNING, refused.reason, refused.message)
            services.metrics.rejected(refused.reason)
            end = PodEnd(refused.reason, f"Pod was rejected: {refused.message}")
            return SyncResult(event=LifeEvent.FAIL, end=end)
        await self._prepare_claims(actions)
        nothing = actions.nothing
        delay = None if nothing else await self._act(actions)
        if nothing:
            state.waiting.clear()
            self._sandbox = None  # frees some KiB; built again for the next container
        record = services.runtime.watch.pod(state.pod.uid)
        if len(record.sandboxes) > 1 or len({c.name for c in record.containers}) < len(record.containers):
            await self._operations.stopper.remove_dead(record)
        if deadline is not None:
            delay = deadline if delay is None else min(delay, deadline)
        return SyncResult(delay, idle=idle and nothing)

    def _deadline(self) -> float | None:
        """Return the seconds until `activeDeadlineSeconds` ends the pod, or None without a deadline."""
        seconds = self._state.pod.spec.active_deadline_seconds
        return None if seconds is None else self._state.started_at + seconds - self._services.context.clock()

    async def _resize(self, resize: Resize) -> None:
        """Carry out a pending resize. Meanwhile the source may have asked for another resize or
        another spec.
        """
        state = self._state
        before = state.pod
        try:
            resized = await self._operations.resizer.carry_out(before, resize, self.publish)
        finally:
            state.restarting |= resize.stopped
        if resized is None:
            return
        await self._accept(resized)
        # Otherwise the source has replaced the pod while the resize was carried out; the newer spec stays.
        if state.pod is before:
            resized.status = before.status
            state.pod = resized
            self._services.volumes.manager.pod_changed(resized)
        if state.resize is resize:
            state.resize = None
        self._on_release()

    async def _accept(self, pod: Pod) -> None:
        """Record the accepted pod before anything of it is created."""
        if self._accepted is not pod:
            await self._services.records.accepted.write(pod)
            self._accepted = pod

    async def _finish(self, actions: PodActions) -> None:
        """Stop the sandbox and release the cgroup once every container has ended for good."""
        pod, services = self._state.pod, self._services
        if actions.kill_pod:
            record = services.runtime.watch.pod(pod.uid)
            await self._operations.stopper.stop_pod(pod, record, lambda c: grace_seconds(pod, c))
        self._state.waiting.clear()
        await self._release()

    async def _prepare(self) -> None:
        """Create the cgroup and the volumes once, and further volumes when an added container mounts them.

        A restarted agent does this again and finds them in place.
        """
        pod, services = self._state.pod, self._services
        if self._volumes is None:
            self._cgroup_parent = services.allocations.cgroups.create_pod(pod)
        elif all(volume.name in self._volumes for volume in used_volumes(pod)):
            return
        self._volumes = await services.volumes.manager.set_up(pod)

    async def _prepare_claims(self, actions: PodActions) -> None:
        """Prepare the claims before the sandbox, since its containers may need devices that drivers create
        for the pod, and again if the record of an earlier agent is lost.
        """
        pod, claims = self._state.pod, self._services.allocations.claims
        if has_claims(pod) and (actions.create_sandbox or not claims.knows(pod)):
            try:
                await claims.prepare(pod)
            except (InvalidInput, Refused) as error:
                raise ClaimsRefused(f"Failed to prepare dynamic resources: {error}") from error

    async def _act(self, actions: PodActions) -> float | None:
        pod, services, operations = self._state.pod, self._services, self._operations
        record = services.runtime.watch.pod(pod.uid)
        # Records are newest first; reversed, the newest of each name wins.
        # One that a resize has stopped has not failed: it starts again without a delay.
        ended = {
            c.name: c
            for c in reversed(record.containers)
            if c.state == EXITED and c.id not in self._state.restarting
        }
        if actions.kill_pod:
            await operations.stopper.stop_pod(pod, record, lambda c: grace_seconds(pod, c))
        for kill in actions.kill:
            grace = grace_seconds(pod, kill.container, kill.liveness)
            await operations.stopper.stop_container(pod, kill.container, grace, kill.event)
        killed = {kill.container.name: kill.message for kill in actions.kill}
        await self._reset(actions.reset)
        existing = None if actions.create_sandbox else record.sandbox
        # Asked before the slot is taken, because the RuntimeClass may have to be read from the API server.
        handler = await operations.sandboxes.runtime_handler(pod, existing)
        starts = services.starts
        slots = starts.slots if has_own_volumes_only(pod) else starts.foreign_slots
        async with StartSlot(slots, self.publish) as slot:
            if actions.create_sandbox and self._sandbox is not None:
                # The cgroup may have gone with the old sandbox; creating it again changes nothing if not.
                self._cgroup_parent = services.allocations.cgroups.create_pod(pod)
            if actions.create_sandbox or self._sandbox is None:
                self._sandbox = operations.sandboxes.sandbox_config(
                    pod, actions.attempt, self._cgroup_parent, handler
                )
            if actions.create_sandbox:
                await operations.sandboxes.start_sandbox(pod, self._sandbox, handler)
            delays: list[float | None] = []
            for container in actions.start:
                name = container.name
                delays.append(await self._start(container, slot, ended.get(name), killed.get(name, "")))
        waits = [delay for delay in delays if delay is not None]
        return 0.0 if None in delays or not delays else min(waits)

    async def _reset(self, containers: list[ContainerRecord]) -> None:
        """End and remove all containers of a pod that starts again in its sandbox; logs stay."""
        pod, restarts, stopper = self._state.pod, self._state.restarts, self._operations.stopper
        for container in containers:
            if container.running:
                text = f"Stopping container {container.name}"
                await stopper.stop_container(pod, container, 0, text)
            await stopper.remove_container(self._services.runtime.watch.pod(pod.uid), container)
            # The runtime counted the restarts, and forgets them with the container.
            restarts[container.name] = max(restarts.get(container.name, 0), container.attempt + 1)
            await self.publish()

    async def _start(
        self, container: Container, slot: StartSlot, ended: ContainerRecord | None, killed: str
    ) -> float | None:
        """Start one container; return None, or the seconds until the next attempt if it did not start.

        `ended` is the newest container of that name that had ended when the actions were computed. As in the
        kubelet, a container that was just killed for a restart does not count yet; `killed` is the reason
        for the kill.
        """
        pod, services, name = self._state.pod, self._services, container.name
        key = f"{pod.uid}/{name}"
        self._forget_failures_of_others(container, key)
        now = services.context.steady()
        not_before = self._refused.get(name, (0, 0.0))[1]
        if not_before > now:
            return not_before - now
        if ended is not None:
            ended_at = self._ended_at(ended)
            wait = services.starts.backoff.remaining(key, ended_at, now)
            if wait > 0:
                self._back_off(container, services.starts.backoff.delay(key))
                return wait
            services.starts.backoff.attempt(key, ended_at, now)
            self._failed[name] = container.image, container.resources
            self._measured("attempt", name, ended_at, now)
        assert self._volumes is not None
        assert self._sandbox is not None
        # The runtime may have lost the earlier containers; their count goes on, as the kubelet's does.
        least = max(self._state.restarts.get(name, 0), self._state.past.get(name, 0))
        before = services.runtime.watch.pod(pod.uid).container(name)
        try:
            with services.metrics.starts.container(pod, container):
                await self._operations.containers.start_container(
                    pod, container, self._volumes, self._sandbox, slot, least
                )
        except StartRefused as refused:
            self._in_doubt = True
            return self._refuse(container, refused)
        self._state.waiting.pop(name, None)
        self._refused.pop(name, None)
        if before is not None and before.state != CREATED:
            self._state.restarting -= {before.id}
            self._restarted(container, before, killed)
        return None

    def _forget_failures_of_others(self, container: Container, key: str) -> None:
        """Forget the failures of a container that had another image or other resources: both belong to the
        key of the kubelet's back-off (`GetBackoffKey`).
        """
        now = container.image, container.resources
        if self._failed.get(container.name, now) != now:
            del self._failed[container.name]
            self._services.starts.backoff.reset(key)
            self._refused.pop(container.name, None)

    def _ended_at(self, ended: ContainerRecord) -> float:
        """Return when a container ended, on the steady clock.

        The runtime's time of the end is compared with the wall clock once, when the end is first seen: a
        clock that is set back later does not prolong the back-off.
        """
        context = self._services.context
        known = self._ended.get(ended.name)
        if known is None or known[0] != ended.id:
            age = max(context.clock() - ended.finished_at, 0.0)
            known = self._ended[ended.name] = ended.id, context.steady() - age
            self._measured("ended", ended.name, known[1])
        return known[1]

    def _measured(self, what: str, container: str, *times: float) -> None:
        """Record what the delays of restarts are computed from, in microseconds of the steady clock."""
        record = self._services.context.decisions.record_measured
        if record is not None:
            pod, values = self._state.pod, [round(time * 1e6) for time in times]
            record(Measured("restart", what, container, values, pod.full_name, pod.uid))

    def _restarted(self, container: Container, before: ContainerRecord, killed: str) -> None:
        pod, services = self._state.pod, self._services
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
        pod, services, name = self._state.pod, self._services, container.name
        if self._state.waiting.get(name) != refused.waiting:
            refused.report(services.context.recorder, pod, name)
        self._state.waiting[name] = refused.waiting
        self._failed[name] = container.image, container.resources
        times = self._refused.get(name, (0, 0.0))[0] + 1
        wait = retry_seconds(times)
        if refused.waiting.reason != "ErrImagePull":
            wait = max(wait, services.images.retry_in(pod, container))
        self._refused[name] = times, services.context.steady() + wait
        return wait

    def _back_off(self, container: Container, delay: float) -> None:
        waiting = self._state.waiting
        if waiting.get(container.name, Waiting("")).reason == "CrashLoopBackOff":
            return
        meta = self._state.pod.metadata
        whose = f"{meta.name}_{meta.namespace}({meta.uid})"
        text = f"back-off {Duration(delay)} restarting failed container={container.name} pod={whose}"
        waiting[container.name] = Waiting("CrashLoopBackOff", text)
        event = f"Back-off restarting failed container {container.name} in pod {whose}"
        self._services.context.recorder.pod(
            self._state.pod, WARNING, "BackOff", event, container=container.name
        )

    # The end of the pod

    async def record_end(self) -> None:
        """Record that the pod terminates or has terminated, for the next agent; a failed write is only
        logged.
        """
        life, pod = self._state.life, self._state.pod
        if not life.wanted:
            return
        # A node shutdown ends static pods only until the next start of the agent, which starts them from
        # their manifests.
        if life.end is not None and life.end.until_restart and is_static(pod):
            return
        record = TerminationRecord(life.end, pod.status if life.final else None)
        try:
            await self._services.records.terminations.write(pod.uid, record)
            self.recorded = life.final
        except Refused as error:
            log.error("pod %s: cannot record its termination: %s", pod.full_name, error)

    async def sync_terminating(self) -> None:
        """Stop the pod; return when the runtime lists nothing of it as running and its claims are unprepared.

        The cluster may give the devices to another pod as soon as this one has ended. If only its claims
        remain, a pod that is no longer wanted holds nothing else. Raises the first refusal.
        """
        pod, watch = self._state.pod, self._services.runtime.watch
        record = await watch.reread_pod(pod.uid)
        self._stopping = True
        try:
            await self._operations.stopper.stop_pod(pod, record, self._grace_of)
        finally:
            self._stopping = False
        # The view may lag behind the calls above, so only a fresh list counts: what still runs keeps its
        # CPUs and devices. A busy containerd answers StopContainer while it retries, for minutes, to delete
        # the task of a container that has exited, and lists the container as running until then.
        if watch.pod(pod.uid).alive and (still := await watch.reread_pod(pod.uid)).alive:
            names = ", ".join(container.name for container in still.may_run) or "the sandbox"
            raise Refused(
                f"the runtime confirmed the stop, but still lists {names} as running; trying again",
                subject=f"pod {pod.full_name}",
            )
        await self._release()

    async def _release(self) -> None:
        """Remove the cgroup and unprepare the claims of a pod of which nothing runs."""
        pod, allocations = self._state.pod, self._services.allocations
        # The cgroup first: a process that is left in it may use the devices.
        allocations.cgroups.remove_pod(pod.uid)
        try:
            await allocations.claims.unprepare(pod.uid)
        except Refused:
            # The driver may never come back. A kubelet does not count a pod that its source has removed.
            if not self._state.life.wanted and not self._released:
                self._released = True
                self._services.admission.released(pod)
                self._on_release()
            raise

    def _grace_of(self, container: ContainerRecord) -> int:
        given = self._state.life.given_grace
        grace = given if given is not None else grace_seconds(self._state.pod, container)
        # A pod that ends has a second at least, also for its hooks; a container that restarts may have none.
        return max(grace, LEAST_GRACE_SECONDS)

    def shorten_grace(self) -> None:
        """Stop again with a shorter grace period, if a stop with a longer one is under way."""
        pod, grace = self._state.pod, self._state.life.given_grace
        if self._stopping and grace is not None:
            running = self._services.runtime.watch.pod(pod.uid).may_run
            self._operations.stopper.stop_sooner(pod, running, grace)

    async def remove_volumes(self) -> None:
        """Unmount and remove the volumes of an ended pod, which would occupy memory or disk. Raises
        `Refused`.
        """
        if not self.volumes_removed.done:
            await self._services.volumes.manager.remove_volumes(self._state.pod.uid)
            self.volumes_removed.set()

    async def clean_up(self) -> None:
        """Remove the cgroup and the volumes; dead containers can wait. Raises `Refused`."""
        uid, services = self._state.pod.uid, self._services
        # The runtime may have carried out a start that timed out, after the pod was stopped.
        if (await services.runtime.watch.reread_pod(uid)).alive:
            await self.sync_terminating()
        services.allocations.cgroups.remove_pod(uid)
        await services.volumes.manager.tear_down(uid)
        services.records.forget(uid)
        self.volumes_removed.set()

    async def sync_terminated(self) -> None:
        """Remove everything of the pod from the node. Raises `Refused` naming what could not be removed."""
        pod, services, past = self._state.pod, self._services, self._state.past
        record = services.runtime.watch.pod(pod.uid)
        # The runtime may hold nothing of the pod, and its record is empty then; the log directory still has
        # to go.
        record.uid = pod.uid
        for container in record.containers:
            past[container.name] = max(past.get(container.name, 0), container.attempt + 1)
        await self._operations.stopper.remove_pod(record, pod)
        services.starts.backoff.forget(f"{pod.uid}/")
        services.images.forget(pod.uid)
