"""Carries out one pod's life (`pod.life`): an asyncio task that sleeps until something about its pod changes.

While the pod works it asks `actions.next_actions` what to do, does it, and asks again. Ending is separate:
`end` (the node fails the pod: evicted, past its deadline) and `remove` (its manifest has gone) interrupt
whatever is going on; the containers stop with their grace, and a removed pod leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from engine.api.duration import Duration
from engine.api.errors import KubengineError, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod
from engine.api.qos import is_static
from engine.api.status import PodCondition, ResourceAmounts
from engine.cgroups.containers import ContainerResources
from engine.cgroups.resize import status_resources
from engine.cri.client import NotFound
from engine.cri.records import EXITED, ContainerRecord
from engine.node.actions import PodActions, next_actions
from engine.node.container_hash import container_hash
from engine.node.image_pull import StartRefused
from engine.node.pod.kept_end import KeptEnd
from engine.node.pod.life import Action, Event, PodLife, State
from engine.node.resizing import Resize, can_resize, carry_out
from engine.node.services import Services
from engine.node.slots import StartSlot
from engine.node.starting import (
    SandboxRefused,
    remove_log_link,
    sandbox_config,
    start_container,
    start_sandbox,
)
from engine.node.status import FAILED, SUCCEEDED, StatusInputs, Waiting, pod_status, with_others
from engine.node.stopping import grace_seconds, remove_dead, remove_pod, stop_container, stop_pod, stop_sooner
from engine.node.termination_message import LastWords
from engine.node.volumes import VolumeRefused
from engine.node.wake import Wake
from engine.wire import cri_v1_pb2 as cri

log = logging.getLogger("kubengine.pods")

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 10.0


Enter = Callable[["PodWorker"], Awaitable[None]]
"""Returns when the worker's pod may start; raises `AdmissionRejected`, and then it holds nothing."""


class PodWorker:
    """`pod.status` is kept current. `life` is where the pod is when the agent comes to know it.

    `enter` is asked while the pod is to be judged. `moved_on(worker)` is called when the pod may have made
    room: after a resize, when it holds nothing any more, and when nothing of it is left (`gone`).
    """

    def __init__(
        self,
        pod: Pod,
        services: Services,
        *,
        life: PodLife,
        enter: Enter,
        moved_on: Callable[[PodWorker], None],
    ) -> None:
        self.pod = pod
        self.life = life
        self._services = services
        self._enter = enter
        self._moved_on = moved_on
        loop = asyncio.get_running_loop()
        self._stopping = False
        self._hastening = services.tasks.passing("pod-hasten")
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._wake = Wake()
        self._busy = self._abandoned = False
        self._restarts: dict[str, int] = {}
        self._refusals: list[asyncio.Future[None]] = []
        self._waiting: dict[str, Waiting] = {}
        self._refused: dict[str, tuple[int, float]] = {}
        self._resize: Resize | None = None
        self._last_words = LastWords(root=services.node.root, logs=Path(services.node.config.pod_logs_dir))
        self._volumes: Mapping[str, Path] | None = None
        self._sandbox: cri.PodSandboxConfig | None = None
        self._cgroup_parent = ""
        self._start_time = self._known_start() or services.node.clock()
        self._final = self._kept = life.final
        self._said_rejected = ""
        self._failures = 0
        self._last_failure = ""
        self._task = loop.create_task(self._run(), name=f"pod {pod.full_name}")

    # What the node tells a worker

    def notify(self) -> None:
        """Something about the pod may have changed."""
        self._wake.ring()

    def update(self, pod: Pod) -> None:
        """A new spec under the same uid: a resize where only amounts differ; judged anew if not yet taken."""
        pod.status = self.pod.status
        if self.life.state in (State.ENTERING, State.REJECTED):
            self.pod = pod
            self.retry()
            return
        self._resize = Resize(pod) if can_resize(self.pod, pod) else None
        if self._resize is None:
            self.pod = pod
            self._services.accounts.resized(pod)
        self._wake.ring()

    def retry(self) -> None:
        """The pod may fit now, if it did not."""
        if self.life.state is State.ENTERING:
            self._interrupt()
            self._release()
        self._tell(Event.RETRY)

    @property
    def wanted(self) -> Pod:
        """The pod as its manifest has it, which it is not yet while a resize waits."""
        return self._resize.wanted if self._resize is not None else self.pod

    @property
    def waits_for_room(self) -> bool:
        return self._resize is not None and self._resize.waiting

    def end(self, end: PodEnd) -> None:
        """Fail the pod for good, if it has not ended yet."""
        self._tell(Event.FAIL, end)

    async def end_and_wait(self, end: PodEnd) -> None:
        """Fails the pod; returns when its containers have stopped, raises at the first refusal."""
        self.end(end)
        if not self.life.over:
            await self.wait_stopped()

    async def wait_stopped(self) -> None:
        """Returns when nothing of a pod that ends runs any more, raises at the first refusal."""
        refusal = asyncio.get_running_loop().create_future()
        self._refusals.append(refusal)
        stopped = asyncio.shield(self._stopped)
        try:
            await asyncio.wait({stopped, refusal}, return_when=asyncio.FIRST_COMPLETED)
            if refusal.done():
                refusal.result()
        finally:
            stopped.cancel()
            refusal.cancel()
            self._refusals.remove(refusal)

    def remove(self, grace: int | None = None) -> None:
        """Nobody wants the pod any more: end it within `grace` seconds (its own, if None), and leave nothing.

        Told again, only a shorter grace changes anything.
        """
        self._tell(Event.REMOVE, grace=grace)

    def describe(self, metadata: ObjectMeta) -> None:
        """New labels, annotations or marks of the same pod."""
        self.pod.metadata = metadata
        self.wanted.metadata = metadata
        self._wake.ring()

    def hear(self, conditions: Sequence[PodCondition]) -> None:
        """Conditions as the API has them: those that others say are taken over."""
        status = with_others(self.pod.status, conditions)
        if self.life.holds and status != self.pod.status:
            self.pod.status = status
            self._wake.ring()

    def _tell(self, event: Event, end: PodEnd | None = None, grace: int | None = None) -> None:
        for action in self.life.tell(event, end, grace):
            if action is Action.INTERRUPT:
                self._services.probes.ending(self.pod.uid)
                self._interrupt()
            elif action is Action.LEAVE:
                self._services.accounts.leaves(self.pod.uid)
            elif action is Action.HASTEN:
                self._hasten()
            else:
                self._release()
        self._wake.ring()

    def _hasten(self) -> None:
        """Ask the runtime again, where it has been asked to stop the pod and was given longer."""
        grace = self.life.given_grace
        if self._stopping and grace is not None:
            running = self._services.watch.pod(self.pod.uid).may_run
            self._hastening.start(stop_sooner(running, self._services, grace), self.pod.full_name)

    def _release(self) -> None:
        """The pod holds nothing of the node any more."""
        self._services.accounts.released(self.pod)
        self._services.probes.released(self.pod.uid)

    def _interrupt(self) -> None:
        if self._busy and asyncio.current_task() is not self._task:
            self._busy = False
            self._task.cancel()

    async def abandon(self) -> None:
        """Stop working without touching the pod: the agent goes, the pod stays."""
        self._abandoned = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._hastening.stop()

    @property
    def gone(self) -> bool:
        """Nothing of the pod is left."""
        return self._gone.done()

    async def wait_gone(self) -> None:
        await asyncio.shield(self._gone)

    # Its life

    async def _run(self) -> None:
        while self.life.state is not State.GONE:
            try:
                await self._live(self.life.state)
            except Exception as error:
                await asyncio.sleep(await self._failed(error))

    async def _live(self, state: State) -> None:
        """Does what is to be done in a state, until it is left."""
        if state is State.ENTERING:
            await self._interruptible(self._be_judged)
        elif state is State.WORKING:
            await self._interruptible(self._work)
        elif state in (State.FAILING, State.LEAVING):
            await self._end()
        elif state is State.REMOVING:
            await self._persist("removing", self._take_away)
            self._tell(Event.REMOVED)
            self._gone.set_result(None)
            self._moved_on(self)
        else:
            if state is State.FINISHED and not self._kept:
                await self._keep_end()
            self._wake.silence()
            if self.life.state is state:
                await self._wake.wait()

    async def _interruptible(self, activity: Callable[[], Awaitable[None]]) -> None:
        """Works until `_interrupt` ends it, wherever it is."""
        self._busy = True
        try:
            await activity()
        except asyncio.CancelledError:
            if self._abandoned or self._busy or self._task.uncancel() > 0:
                raise
        finally:
            self._busy = False

    async def _be_judged(self) -> None:
        await self._publish()
        try:
            await self._enter(self)
        except AdmissionRejected as rejected:
            text = f"Pod was rejected: {rejected.message}"
            self._tell(Event.REJECT, PodEnd(rejected.reason, text, rejected=True))
            if rejected.reason != self._said_rejected:
                self._said_rejected = rejected.reason
                self._services.recorder.pod(self.pod, WARNING, rejected.reason, rejected.message)
            await self._publish()
        else:
            self._tell(Event.ADMIT)

    async def _end(self) -> None:
        """The pod is to end: what was decided is kept first, then its containers stop."""
        await self._keep_end()
        await self._persist("stopping", self._stop)
        self._tell(Event.STOPPED)
        if not self._stopped.done():
            self._stopped.set_result(None)
        await self._publish()
        await self._keep_end()
        self._moved_on(self)

    async def _keep_end(self) -> None:
        """That the pod ends, or has ended, for an agent that comes back. Not worth to stop for."""
        if not self.life.wanted:
            return
        kept = KeptEnd(self.life.end, self.pod.status if self.life.final else None)
        try:
            await asyncio.to_thread(self._services.ends.write, self.pod.uid, kept)
            self._kept = self.life.final
        except (Refused, OSError) as error:
            log.error("pod %s: its end is not kept: %s", self.pod.full_name, error)

    async def _work(self) -> None:
        while self.life.state is State.WORKING:
            self._wake.silence()
            try:
                await self._publish()
                delay = await self._step()
                await self._publish()
            except Exception as error:
                await asyncio.sleep(await self._failed(error))
                continue
            await self._wake.wait(delay)

    async def _failed(self, error: Exception, doing: str = "syncing") -> float:
        """Says what went wrong, once while it stays the same; the seconds until another try."""
        expected = isinstance(error, KubengineError | OSError)
        if not expected:
            self._services.tasks.failures.inc("pod-worker")
        if str(error) != self._last_failure:
            self._last_failure = str(error)
            if not expected:
                log.error("pod %s: unexpected error", self.pod.full_name, exc_info=error)
            event, text = "FailedSync", f"Error {doing} pod: {error}"
            if isinstance(error, SandboxRefused):
                event, text = "FailedCreatePodSandBox", str(error)
            elif isinstance(error, VolumeRefused):
                event, text = "FailedMount", str(error)
            self._services.recorder.pod(self.pod, WARNING, event, text)
        self._failures += 1
        with contextlib.suppress(Exception):  # it may be what failed
            await self._publish()
        return _retry_seconds(self._failures)

    async def _step(self) -> float | None:
        """Does the next thing; the seconds until it wants to be asked again, None to sleep."""
        deadline = self._deadline()
        if deadline is not None and deadline <= 0:
            text = "Pod was active on the node longer than the specified deadline"
            self._services.recorder.pod(self.pod, NORMAL, "DeadlineExceeded", text)
            self.end(PodEnd("DeadlineExceeded", text))
            return None
        services = self._services
        if self._resize is not None:
            await self._try_resize(self._resize)
        record = services.watch.pod(self.pod.uid)
        actions = next_actions(
            self.pod,
            record,
            health=lambda c: services.probes.health(self.pod.uid, c),
            spec_hash=container_hash,
        )
        if actions.finished:
            await self._finish(actions)
            return None
        await self._prepare()
        delay = None if actions.nothing else await self._act(actions)
        if actions.nothing:
            self._waiting.clear()
        self._failures, self._last_failure = 0, ""
        await remove_dead(services.watch.pod(self.pod.uid), services)
        return min((d for d in (delay, deadline) if d is not None), default=None)

    async def _try_resize(self, resize: Resize) -> None:
        resized = await carry_out(self.pod, resize, self._services)
        if resized is not None:
            resized.status = self.pod.status
            self.pod = resized
            self._resize = None
            self._moved_on(self)

    def _deadline(self) -> float | None:
        seconds = self.pod.spec.active_deadline_seconds
        return None if seconds is None else self._start_time + seconds - self._services.node.clock()

    async def _prepare(self) -> None:
        """Cgroup and volumes, once (and again by a new agent, which finds them made)."""
        if self._volumes is not None:
            return
        services = self._services
        self._cgroup_parent = services.cgroups.create_pod(self.pod)
        self._volumes = await asyncio.to_thread(
            services.volumes.set_up,
            self.pod,
            host_ip=services.node.host_ip,
            allocatable=services.accounts.allocatable(),
        )

    async def _act(self, actions: PodActions) -> float | None:
        services = self._services
        record = services.watch.pod(self.pod.uid)
        if actions.kill_pod:
            await stop_pod(self.pod, record, services, lambda c: grace_seconds(self.pod, c))
        for kill in actions.kill:
            grace = grace_seconds(self.pod, kill.container, kill.liveness)
            message = f"{kill.message}, will be restarted" if kill.liveness else kill.message
            await stop_container(self.pod, kill.container, services, grace, message)
        await self._reset(actions.reset)
        async with StartSlot(services.starting) as slot:
            if actions.create_sandbox:
                self._sandbox = sandbox_config(self.pod, services, actions.attempt, self._cgroup_parent)
                await start_sandbox(self.pod, services, self._sandbox)
                await self._publish()
            elif self._sandbox is None:
                self._sandbox = sandbox_config(self.pod, services, actions.attempt, self._cgroup_parent)
            delays = [await self._start(container, slot) for container in actions.start]
        waits = [delay for delay in delays if delay is not None]
        return 0.0 if None in delays or not delays else min(waits)

    async def _reset(self, containers: list[ContainerRecord]) -> None:
        """Ends and removes all containers of a pod that begins anew in its sandbox; logs stay."""
        services = self._services
        for container in containers:
            if container.running:
                text = f"Stopping container {container.name}"
                await stop_container(self.pod, container, services, 0, text)
            with contextlib.suppress(NotFound):
                await services.runtime.remove_container(container.id)
            remove_log_link(services.watch.pod(self.pod.uid), container)
            self._restarts[container.name] = max(self._restarts.get(container.name, 0), container.attempt + 1)
            services.watch.forget(self.pod.uid, [container.id])
            await self._publish()

    async def _start(self, container: Container, slot: StartSlot) -> float | None:
        """Starts one container; None when it did, else the seconds to wait before another try."""
        services, name = self._services, container.name
        key = f"{self.pod.uid}/{name}"
        newest = services.watch.pod(self.pod.uid).container(name)
        now = services.node.clock()
        not_before = self._refused.get(name, (0, 0.0))[1]
        if not_before > now:
            return not_before - now
        if newest is not None and newest.state == EXITED:
            wait = services.backoff.remaining(key, newest.finished_at, now)
            if wait > 0:
                self._back_off(container, services.backoff.delay(key))
                return wait
            services.backoff.attempt(key, newest.finished_at, now)
        assert self._volumes is not None
        assert self._sandbox is not None
        try:
            await start_container(
                self.pod,
                container,
                services,
                self._volumes,
                self._sandbox,
                slot,
                self._restarts.get(name, 0),
            )
        except StartRefused as refused:
            if self._waiting.get(name) != refused.waiting:
                refused.say(services.recorder, self.pod, name)
            self._waiting[name] = refused.waiting
            times = self._refused.get(name, (0, 0.0))[0] + 1
            wait = _retry_seconds(times)
            if refused.waiting.reason != "ErrImagePull":
                wait = max(wait, services.images.retry_in(self.pod, container))
            self._refused[name] = times, services.node.clock() + wait
            return wait
        self._waiting.pop(name, None)
        self._refused.pop(name, None)
        return None

    def _back_off(self, container: Container, delay: float) -> None:
        if self._waiting.get(container.name, Waiting("")).reason == "CrashLoopBackOff":
            return
        meta = self.pod.metadata
        whose = f"{meta.name}_{meta.namespace}({meta.uid})"
        text = f"back-off {Duration(delay)} restarting failed container={container.name} pod={whose}"
        self._waiting[container.name] = Waiting("CrashLoopBackOff", text)
        event = f"Back-off restarting failed container {container.name} in pod {whose}"
        self._services.recorder.pod(self.pod, WARNING, "BackOff", event, container=container.name)

    async def _finish(self, actions: PodActions) -> None:
        """Every container has ended for good: stop the sandbox, give the node its resources back."""
        record = self._services.watch.pod(self.pod.uid)
        if actions.kill_pod:
            await stop_pod(self.pod, record, self._services, lambda c: grace_seconds(self.pod, c))
        self._waiting.clear()
        self._services.cgroups.remove_pod(self.pod.uid)
        self._tell(Event.FINISH)
        await self._publish()
        self._moved_on(self)

    async def _persist(self, doing: str, attempt: object) -> None:
        """Repeats until it works: ending a pod is never given up."""
        self._failures = 0
        while True:
            try:
                await attempt()  # type: ignore[operator]
            except Exception as error:
                delay = await self._failed(error, doing)
                for refusal in self._refusals:
                    if not refusal.done():
                        refusal.set_exception(_as_ours(error, self.pod))
                await asyncio.sleep(delay)
            else:
                return

    async def _stop(self) -> None:
        record = await self._services.watch.reread_pod(self.pod.uid)
        self._stopping = True
        try:
            await stop_pod(self.pod, record, self._services, self._grace_of)
        finally:
            self._stopping = False
        self._services.cgroups.remove_pod(self.pod.uid)

    def _grace_of(self, container: ContainerRecord) -> int:
        given = self.life.given_grace
        return given if given is not None else grace_seconds(self.pod, container)

    async def _take_away(self) -> None:
        record = await self._services.watch.reread_pod(self.pod.uid)
        record.uid = self.pod.uid
        if record.may_run or any(sandbox.ready for sandbox in record.sandboxes):
            await self._stop()
        await remove_pod(record, self._services, self.pod)
        self._services.backoff.forget(f"{self.pod.uid}/")
        self._services.images.forget(self.pod.uid)

    # Its status

    async def _publish(self) -> None:
        status = self.pod.status
        if status.phase in (SUCCEEDED, FAILED) and self._final:
            return
        services, end = self._services, self.life.end
        rejected = end is not None and self.life.state in (State.ENTERING, State.REJECTED)
        record = services.watch.pod(self.pod.uid)
        await self._last_words.read(self.pod, record)
        self._final = self.life.final
        services.probes.observed(self.pod, record)
        services.accounts.observed(self.pod, record)
        current = pod_status(
            self.pod,
            record,
            StatusInputs(
                now=services.node.clock(),
                runtime_name=services.node.runtime_name,
                host_ip=services.node.host_ip,
                ready=lambda c: services.probes.ready(self.pod.uid, c),
                started=lambda c: services.probes.health(self.pod.uid, c).started,
                waiting=self._waiting,
                ended=(end.reason, end.message) if end is not None else None,
                rejected=end is not None and end.rejected,
                disruption=(end.condition_reason, end.message)
                if end is not None and end.condition_reason
                else None,
                start_time=self._start_time,
                terminated=rejected or self.life.stopped,
                resources=self._resources,
                extra_conditions=(self._resize.condition,)
                if self._resize is not None and self._resize.condition is not None
                else (),
                message=self._last_words.of,
                recursive_read_only=services.runtime_health.features.recursive_read_only_mounts,
                reset=self._restarts,
            ),
        )
        if current != status:
            self.pod.status = current
            services.probes.remember(self.pod)
            services.belonging.pod_changed(self.pod, may_run=self.life.holds)

    def _resources(self, record: ContainerRecord) -> ResourceAmounts | None:
        """What the runtime says that a container has, in the words of its manifest where they agree."""
        container = next((c for c in self.pod.all_containers if c.name == record.name), None)
        if container is None or record.resources is None or not record.running:
            return None
        shares, quota, period, memory = record.resources
        return status_resources(
            container,
            ContainerResources(
                cpu_shares=shares, cpu_quota=quota, cpu_period=period, memory_limit_in_bytes=memory
            ),
        )

    def _known_start(self) -> float | None:
        """When it began is kept in its status; else a running pod began when its first sandbox did."""
        if not is_static(self.pod) and self.pod.status.start_time is not None:
            return self.pod.status.start_time.timestamp()
        sandboxes = self._services.watch.pod(self.pod.uid).sandboxes
        return min((s.created_at for s in sandboxes), default=None)


def _as_ours(error: Exception, pod: Pod) -> KubengineError:
    if isinstance(error, KubengineError):
        return error
    return Refused(f"{type(error).__name__}: {error}", subject=f"pod {pod.full_name}")


def _retry_seconds(failures: int) -> float:
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10), LAST_RETRY_SECONDS)
