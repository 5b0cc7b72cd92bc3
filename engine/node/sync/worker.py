"""Carries one pod through its life (`pod.life`): a task works until nothing is left to do for the pod.

The next task begins when something about the pod changes. The work of each state is one call of
`sync.PodSync`. `end` (the node fails the pod: evicted, past its deadline) and `remove` (no source wants it)
interrupt any work in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import copy_context
from types import MappingProxyType

from engine.api.errors import KubengineError, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.qos import is_static
from engine.api.status import PodStatus
from engine.host.tasks import Completion
from engine.node.pod.life import Action, LifeEvent, LifeState, PodLife, PodState, Waiting
from engine.node.pod.resize import Resize
from engine.node.sync.ephemeral_containers import with_ephemeral_containers_of
from engine.node.sync.operations import PodOperations
from engine.node.sync.resizing import can_resize
from engine.node.sync.services import Services
from engine.node.sync.starting import ClaimsRefused, SandboxRefused
from engine.node.sync.status import with_others
from engine.node.sync.sync import PodSync, retry_seconds
from engine.node.volumes import VolumeRefused

log = logging.getLogger("kubengine.pods")

Enter = Callable[["PodWorker"], Awaitable[None]]
"""Returns when the worker's pod may start; raises `AdmissionRejected`, after which the pod holds nothing."""


class PodWorker:
    """Run one pod and keep `pod.status` current.

    A pod at rest has no task: thousands of them rest most of the time, and a task with its coroutines holds
    1 KiB.

    `life` is the state in which the agent finds the pod. `enter` is awaited for admission.
    `moved_on(worker)` is called when the pod may have freed resources: after a resize, when it holds nothing
    any longer, and when nothing of it is left (`gone`). `past` are the restart counts of the same pod if it
    returns.
    """

    def __init__(
        self,
        pod: Pod,
        services: Services,
        operations: PodOperations,
        *,
        life: PodLife,
        enter: Enter,
        moved_on: Callable[[PodWorker], None],
        past: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._seen = now = services.context.clock()
        known_start = _known_start(pod, services)
        if known_start is None and life.state is LifeState.ADMITTING:
            services.metrics.seen(pod.uid, now, len(pod.spec.containers))
        self._state = PodState(pod, life, known_start or now, past=dict(past), final_published=life.final)
        self.life = life
        self._services = services
        self._enter = enter
        self._on_transition = moved_on
        self._sync = PodSync(self._state, services, operations, on_release=self._moved_on)
        self._failures, self._reported_failure = 0, ""
        self._stopped, self._gone = Completion(), Completion()
        self._busy = self._abandoned = False
        self._next_work = "create"
        self._refusals: list[asyncio.Future[None]] = []
        self._reported_rejection = ""
        # The spans of all its tasks have the parent that is open here, not in whoever wakes it.
        self._tracing_context = copy_context()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = False
        self.notify()

    @property
    def pod(self) -> Pod:
        return self._state.pod

    @property
    def past(self) -> Mapping[str, int]:
        """Return how often each container had run when the pod was removed, by name."""
        return self._state.past

    # Messages from the node to a worker

    def notify(self) -> None:
        """Wake the worker: something about the pod may have changed."""
        self._changed = True
        if self._task is None and not self._abandoned:
            self._stop_timer()
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"pod {self.pod.full_name}", context=self._tracing_context
            )

    def update(self, pod: Pod) -> None:
        """Take a new spec with the same uid: a resize if only amounts differ; admission again if not admitted
        yet.

        Ephemeral containers are accepted at once, even if a resize is waiting.
        """
        state = self._state
        # The source's copy has the status that the API server knows, which may be older than the node's.
        pod.status = state.pod.status
        if self.life.state in (LifeState.ADMITTING, LifeState.REJECTED):
            state.pod = pod
            self.retry()
            return
        if self._next_work != "create":
            self._next_work = "update"
        added = with_ephemeral_containers_of(pod, state.pod)
        before = state.wanted
        state.resize = Resize(pod) if can_resize(added, pod) else None
        if state.resize is not None:
            self._services.metrics.resizes.requested(before, pod)
        if state.resize is not None and added is not state.pod:
            state.pod = added
            self._services.volumes.manager.pod_changed(added)
        if state.resize is None:
            state.pod = pod
            self._services.admission.resized(pod)
            self._services.volumes.manager.pod_changed(pod)
        self.notify()

    def retry(self) -> None:
        """Try admission again, because the pod may fit now."""
        # An admission that is under way has judged the pod as it was.
        if self.life.state is LifeState.ADMITTING:
            self._interrupt()
            self._release()
        self._apply_event(LifeEvent.RETRY)

    @property
    def wanted(self) -> Pod:
        """Return the pod as its source wants it; the node's pod differs while a resize waits."""
        return self._state.wanted

    @property
    def waits_for_resources(self) -> bool:
        resize = self._state.resize
        return resize is not None and resize.waiting

    @property
    def may_need_resources(self) -> bool:
        """Tell whether the pod waits for admission or for a resize."""
        return self.life.state in (LifeState.ADMITTING, LifeState.REJECTED) or self._state.resize is not None

    def end(self, end: PodEnd) -> None:
        """Fail the pod for good, unless it has ended."""
        self._apply_event(LifeEvent.FAIL, end)

    async def end_and_wait(self, end: PodEnd) -> None:
        """Fail the pod; return when its containers have stopped. Raises the first refusal."""
        self.end(end)
        if not self.life.over:
            await self.wait_stopped()

    async def wait_volumes_removed(self) -> None:
        """Return when a pod that has ended no longer has a volume."""
        await self._sync.volumes_removed.wait()

    async def wait_stopped(self) -> None:
        """Wait until nothing of a terminating pod runs. Raises the first refusal."""
        refusal = asyncio.get_running_loop().create_future()
        self._refusals.append(refusal)
        stopped = self._stopped.future()
        try:
            await asyncio.wait({stopped, refusal}, return_when=asyncio.FIRST_COMPLETED)
            if refusal.done():
                refusal.result()
        finally:
            stopped.cancel()
            refusal.cancel()
            self._refusals.remove(refusal)

    def remove(self, grace: int | None = None) -> None:
        """End a pod that no source wants within `grace` seconds (None: its own grace period), and remove it.

        A second call only shortens the grace period.
        """
        self._apply_event(LifeEvent.REMOVE, grace=grace)

    def describe(self, metadata: ObjectMeta) -> None:
        """Take changed labels and annotations of the same pod, which may be ending."""
        self._state.pod.metadata = metadata
        self.wanted.metadata = metadata
        if self.life.wanted:  # the volumes of a pod that ends are removed, and need no newer contents
            self._services.volumes.manager.pod_changed(self._state.pod)
        self._services.describe_pod(self._state.pod)
        self.notify()

    def update_conditions(self, published: PodStatus) -> None:
        """Adopt the conditions that other clients write into the pod's status in the API."""
        status = with_others(self._state.pod.status, published)
        if self.life.holds and status != self._state.pod.status:
            self._state.pod.status = status
            self._services.describe_pod(self._state.pod)
            self.notify()

    def _apply_event(self, event: LifeEvent, end: PodEnd | None = None, grace: int | None = None) -> None:
        for action in self.life.handle(event, end, grace):
            if action is Action.INTERRUPT:
                # First the probes: a failed liveness probe must not restart what is being ended.
                self._services.probes.ending(self._state.pod.uid)
                self._interrupt()
            elif action is Action.LEAVE:
                self._services.admission.terminating(self._state.pod.uid)
            elif action is Action.SHORTEN_GRACE:
                self._sync.shorten_grace()
            else:
                self._release()
        self.notify()

    def _release(self) -> None:
        """Release everything that the pod holds of the node."""
        self._services.admission.released(self._state.pod)
        self._services.probes.released(self._state.pod.uid)

    def _interrupt(self) -> None:
        # The worker itself may apply the event, for example at a deadline. It must not cancel itself: its
        # loop finds the new state anyway.
        if self._busy and self._task is not None and asyncio.current_task() is not self._task:
            self._busy = False
            self._task.cancel()

    async def abandon(self) -> None:
        """Stop working without touching the pod, because the agent stops."""
        self._abandoned = True
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def gone(self) -> bool:
        """Tell whether nothing of the pod is left."""
        return self._gone.done

    async def wait_at_rest(self) -> None:
        """Wait until nothing of a terminating pod runs, through any number of refusals."""
        await self._stopped.wait()

    async def wait_gone(self) -> None:
        await self._gone.wait()

    # The life of the pod

    async def _run(self) -> None:
        """Work until nothing is left to do for the pod; `notify` or a timer starts the next run."""
        while (state := self.life.state) is not LifeState.REMOVED:
            interruptible = state in (LifeState.ADMITTING, LifeState.WORKING)
            self._busy, self._changed = interruptible, False
            try:
                delay = await self._work_of(state)()
            except asyncio.CancelledError:
                # `_interrupt` has ended this work, wherever it was; any other cancellation ends the worker.
                task = asyncio.current_task()
                if not interruptible or self._abandoned or self._busy or task is None or task.uncancel() > 0:
                    raise
            except Exception as error:
                self._busy = False
                await asyncio.sleep(await self._failed(error))
            else:
                if self.life.state is state and not self._changed:
                    self._rest_for(delay)
                    return
            finally:
                self._busy = False

    def _rest_for(self, seconds: float | None) -> None:
        """Let the task end; the next one begins with a change, or after so many seconds."""
        self._task = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.notify)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _work_of(self, state: LifeState) -> Callable[[], Awaitable[float | None]]:
        """Return what is done for a pod in this state. It returns after how many seconds it is due again
        although nothing changes, None for never.
        """
        return {
            LifeState.ADMITTING: self._admit,
            LifeState.WORKING: self._work,
            LifeState.FAILING: self._end,
            LifeState.LEAVING: self._end,
            LifeState.CLEANING_UP: self._clean_up,
            LifeState.REPORTING: self._report,
            LifeState.REMOVING: self._remove,
        }.get(state, self._rest)

    async def _clean_up(self) -> None:
        await self._persist("removing", self._sync.clean_up)
        self._apply_event(LifeEvent.FREED)

    async def _report(self) -> None:
        """Wait until the source knows the last status. It is computed from containers that are removed
        afterwards.
        """
        await self._sync.publish()
        await self._services.control_plane.wait_final_status(self._state.pod)
        self._apply_event(LifeEvent.KNOWN)

    async def _remove(self) -> None:
        began = self._services.context.clock()
        with self._span("syncTerminatedPod"):
            await self._persist("removing", self._sync.sync_terminated)
        self._services.metrics.worked("terminated", self._seconds_since(began))
        self._apply_event(LifeEvent.REMOVED)
        self._services.metrics.forget(self._state.pod.uid)
        self._gone.set()
        self._on_transition(self)

    async def _rest(self) -> None:
        """Finish a pod for which nothing else is to do: it was rejected, or it has ended."""
        state = self.life.state
        if state is LifeState.FINISHED and not self._sync.recorded:
            await self._sync.record_end()
        if state in (LifeState.FINISHED, LifeState.FAILED):
            await self._sync.remove_volumes()

    async def waits_for(self, reason: str, message: str) -> None:
        """Show in the status why the pod has to wait for admission."""
        self._state.waiting_reason = Waiting(reason, message)
        self._services.context.recorder.pod(self._state.pod, NORMAL, reason, message)
        self._decided("waiting", f"{reason}: {message}")
        await self._sync.publish()

    async def _admit(self) -> None:
        self._state.waiting_reason = None
        try:
            await self._enter(self)
        except AdmissionRejected as rejected:
            text = f"Pod was rejected: {rejected.message}"
            self._apply_event(LifeEvent.REJECT, PodEnd(rejected.reason, text, rejected=True))
            if rejected.reason != self._reported_rejection:
                self._reported_rejection = rejected.reason
                self._services.metrics.rejected(rejected.reason)
                self._services.context.recorder.pod(
                    self._state.pod, WARNING, rejected.reason, rejected.message
                )
                self._decided("refused", f"{rejected.reason}: {rejected.message}")
            await self._sync.publish()
        else:
            self._decided("admitted", "")
            self._apply_event(LifeEvent.ADMIT)

    def _decided(self, outcome: str, reason: str) -> None:
        services = self._services
        services.context.decisions.pod(
            self._state.pod, "admission", outcome, reason, services.admission.judged_by(self._state.pod)
        )

    async def _work(self) -> float | None:
        """Sync the pod until nothing is left to do, or its life moves on."""
        if self._next_work == "create":
            self._services.metrics.began(self._seconds_since(self._seen))
        began: float | None = None
        while self.life.state is LifeState.WORKING:
            # Cleared before the state is read, so that a change from here on causes another sync.
            self._changed = False
            # A kubelet creates the sandbox and starts all containers in one syncPod. Here one sync follows
            # another at once; together they are measured as one, so that the metrics of both agents compare.
            if began is None:
                began = self._services.context.clock()
            try:
                await self._sync.publish()
                with self._span("syncPod"):
                    result = await self._sync.sync_pod()
                self._failures, self._reported_failure = 0, ""
                if result.event is not None:
                    self._apply_event(result.event, result.end)
                if not (result.idle or result.goes_on):
                    await self._sync.publish()
            except Exception as error:
                self._rests(began)
                began = None
                await asyncio.sleep(await self._failed(error))
                continue
            if result.goes_on:
                await asyncio.sleep(0)
                continue
            self._rests(began)
            began = None
            if result.event is None and not self._changed:
                return result.delay
        if self.life.state is LifeState.FINISHED:
            self._moved_on()
        return None

    def _moved_on(self) -> None:
        if self.life.state is LifeState.LEAVING:
            # Nothing of it runs and only its claims remain, until their driver comes back.
            self._stopped.set()
        self._on_transition(self)

    def _span(self, name: str) -> AbstractContextManager[object]:
        """Record a stretch of work as a span with the attributes of the kubelet's."""
        meta = self._state.pod.metadata
        attributes = {
            "k8s.pod.uid": meta.uid,
            "k8s.pod": self._state.pod.full_name,
            "k8s.pod.name": meta.name,
            "k8s.namespace.name": meta.namespace,
        }
        if name == "syncPod":
            attributes["k8s.pod.update_type"] = self._next_work
        return self._services.runtime.client.tracing.span(name, attributes)

    def _rests(self, began: float) -> None:
        """Finish a stretch of work."""
        self._services.metrics.worked(self._next_work, self._seconds_since(began))
        self._next_work = "sync"

    def _seconds_since(self, moment: float) -> float:
        return max(self._services.context.clock() - moment, 0.0)

    async def _end(self) -> None:
        """End the pod: record the decision first, then stop its containers."""
        await self._sync.record_end()
        began = self._services.context.clock()
        with self._span("syncTerminatingPod"):
            await self._persist("stopping", self._sync.sync_terminating)
        self._services.metrics.worked("kill", self._seconds_since(began))
        self._apply_event(LifeEvent.STOPPED)
        self._stopped.set()
        await self._sync.publish()
        await self._sync.record_end()
        self._moved_on()

    async def _persist(self, doing: str, attempt: Callable[[], Awaitable[None]]) -> None:
        """Repeat until it succeeds: the agent never gives up ending a pod."""
        self._failures = 0
        while True:
            try:
                await attempt()
            except Exception as error:
                # A killed process stays in its cgroup for a moment: the first such refusal needs no event.
                passing = isinstance(error, Refused) and error.errno == errno.EBUSY and not self._failures
                delay = await self._failed(error, doing, event=not passing)
                for refusal in self._refusals:
                    if not refusal.done():
                        refusal.set_exception(_as_ours(error, self._state.pod))
                await asyncio.sleep(delay)
            else:
                return

    async def _failed(self, error: Exception, doing: str = "syncing", *, event: bool = True) -> float:
        """Report a failure, once while it stays the same; return the seconds until the next attempt.

        Without `event` it counts only for the delay.
        """
        services = self._services
        services.runtime.watch.relist_soon()  # the runtime may have acted nevertheless
        expected = isinstance(error, KubengineError | OSError)
        if not expected:
            services.context.tasks.failures.inc("pod-worker")
        if event and str(error) != self._reported_failure:
            self._reported_failure = str(error)
            if not expected:
                log.error("pod %s: unexpected error", self._state.pod.full_name, exc_info=error)
            services.context.recorder.pod(self._state.pod, WARNING, *_failure_event(error, doing))
        self._failures += 1
        delay = retry_seconds(self._failures)
        with contextlib.suppress(Exception):  # publishing the status may be the operation that failed
            await self._sync.publish()
        return delay


def _failure_event(error: Exception, doing: str) -> tuple[str, str]:
    """Return the reason and the text of the event."""
    if isinstance(error, SandboxRefused):
        return "FailedCreatePodSandBox", str(error)
    if isinstance(error, ClaimsRefused):
        return "FailedPrepareDynamicResources", str(error)
    if isinstance(error, VolumeRefused):
        return error.reason, str(error)
    return "FailedSync", f"Error {doing} pod: {error}"


def _known_start(pod: Pod, services: Services) -> float | None:
    """Return the start time from the pod's status, or else from the first sandbox of a running pod."""
    if not is_static(pod) and pod.status.start_time is not None:
        return pod.status.start_time.timestamp()
    return min((s.created_at for s in services.runtime.watch.pod(pod.uid).sandboxes), default=None)


def _as_ours(error: Exception, pod: Pod) -> KubengineError:
    if isinstance(error, KubengineError):
        return error
    return Refused(f"{type(error).__name__}: {error}", subject=f"pod {pod.full_name}")
