"""Reports pod statuses to the API server, and deletes terminated pods from it.

Only changes are sent, for several pods in parallel. Pods that become ready or unready go first, then those
with a changed phase or deletion. Other changes wait 0.5 s, so that a starting pod causes one request.
Failures are retried with back-off while the pod exists. No task runs while nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError, Unavailable
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.pod_status import TERMINAL, is_ready, status_patch, status_to_send
from engine.cluster.resource_version import is_newer

AT_ONCE: Final = 16
DETAILS_AT_ONCE: Final = 4
DETAIL_DELAY_SECONDS: Final = 0.5
RETRIES: Final = RetryDelays(0.2, 10.0)

log = logging.getLogger("kubengine.cluster")


class _Urgency(IntEnum):
    """Name the reason for a report, most urgent first."""

    READINESS = 0
    PHASE = 1
    DETAIL = 2


class _Answer(msgspec.Struct):
    metadata: ObjectMeta
    status: PodStatus


class _ReportedPod(msgspec.Struct):
    """Hold the server's and the node's status of one pod.

    `removed` means that nothing of the pod is left on the node, `deleted` that the server has acknowledged
    its deletion. `residue` is the part of a patch that the server did not accept.
    """

    meta: ObjectMeta
    server: PodStatus
    ours: PodStatus | None = None
    may_run: bool = True
    removed: bool = False
    deleted: bool = False
    residue: dict[str, Any] = msgspec.field(default_factory=dict)
    failures: int = 0
    busy: bool = False
    again: bool = False
    answered: asyncio.Event | None = None
    """Set and replaced after each response of the server, to wake coroutines that wait for it."""

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.meta.namespace}/pods/{self.meta.name}"


class PodStatusManager:
    """Report pods by their uid in the API.

    The owner calls `update` and `forget` for events of a watch, `report` and `removed` for events of the
    node, in any order and on the event loop's thread.
    """

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._pods: dict[str, _ReportedPod] = {}
        self._due: dict[_Urgency, dict[str, float]] = {urgency: {} for urgency in _Urgency}
        """When each pod may be reported, in the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._followed = True

    def stop_waiting_for_acknowledgements(self) -> None:
        """Stop waiting for the API server to acknowledge anything."""
        self._followed = False
        for known in self._pods.values():
            _wake_waiters(known)

    async def stop(self) -> None:
        """Stop; pending reports are dropped."""
        for timer in (*self._timers.values(), self._timer):
            if timer is not None:
                timer.cancel()
        self._pods.clear()
        for queue in self._due.values():
            queue.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def update(self, pod: Pod, *, listed: bool = False) -> None:
        """Store the server's version of the pod; a `listed` one counts even if it is older than the known
        one.
        """
        known = self._pods.get(pod.uid)
        if known is None:
            self._pods[pod.uid] = _ReportedPod(pod.metadata, pod.status)
            return
        generation = pod.metadata.generation
        if listed or is_newer(pod.metadata, known.meta):
            known.meta, known.server = pod.metadata, pod.status
            # After the store was replaced by an older one, a list may contain a deleted pod again: it must be
            # deleted again.
            known.deleted = known.deleted and not listed
        elif known.meta.generation < generation:
            known.meta.generation = generation
        else:
            return  # already known from the response to our patch
        self._mark(pod.uid)

    def forget(self, uid: str) -> None:
        """Forget a pod that the server no longer has."""
        known = self._pods.pop(uid, None)
        if known is not None:
            _wake_waiters(known)
        for queue in self._due.values():
            queue.pop(uid, None)
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()

    def report(self, uid: str, status: PodStatus, *, may_run: bool) -> None:
        """Queue the node's status of the pod. A pod that the server does not have is ignored. So is a pod of
        which nothing was left on the node, because its last status is final.
        """
        known = self._pods.get(uid)
        if known is not None and not known.removed:
            known.ours, known.may_run = status, may_run
            self._mark(uid)

    def removed(self, uid: str) -> None:
        """Record that nothing of the pod runs, and that it uses no resources of the node."""
        known = self._pods.get(uid)
        if known is not None:
            known.removed, known.may_run = True, False
            self._mark(uid)

    async def wait_reported(self, uid: str) -> None:
        """Return when the server has everything that the node reported of the pod, or has no such pod."""
        known = self._pods.get(uid)
        while known is not None and self._followed and known is self._pods.get(uid):
            if not self._patch(known):
                return
            answered = known.answered = known.answered or asyncio.Event()
            if not known.busy:
                self._mark(uid)
            await answered.wait()

    def is_removed(self, uid: str) -> bool:
        known = self._pods.get(uid)
        return known is not None and known.removed

    def _mark(self, uid: str) -> None:
        known = self._pods[uid]
        if known.busy:
            known.again = True
        # A pod whose last report failed waits for its retry timer, even if its status changes.
        elif uid not in self._timers:
            self._enqueue(uid, _urgency(known))
            self._pump()

    def _enqueue(self, uid: str, urgency: _Urgency) -> None:
        """Queue a pod; a queued pod keeps its place or gets a more urgent one."""
        if any(uid in self._due[better] for better in _Urgency if better <= urgency):
            return
        for queue in self._due.values():
            queue.pop(uid, None)
        wait = DETAIL_DELAY_SECONDS if urgency is _Urgency.DETAIL else 0.0
        self._due[urgency][uid] = asyncio.get_running_loop().time() + wait

    def _pump(self) -> None:
        while (uid := self._next()) is not None:
            known = self._pods[uid]
            patch = self._patch(known)
            if not (patch or self._is_to_delete(known)):
                continue
            known.busy = True
            task = asyncio.create_task(self._work(uid, known, patch), name=f"status of {known.meta.name}")
            self._tasks.add(task)
            task.add_done_callback(self._worked)

    def _next(self) -> str | None:
        """Pop the next pod whose report is due."""
        urgency = next((each for each in _Urgency if self._due[each]), None)
        at_once = DETAILS_AT_ONCE if urgency is _Urgency.DETAIL else AT_ONCE
        if urgency is None or len(self._tasks) >= at_once:
            return None
        # All reports of one urgency have the same delay, so the first one in the queue is due first.
        uid, due = next(iter(self._due[urgency].items()))
        loop = asyncio.get_running_loop()
        if due > loop.time():
            self._timer = self._timer or loop.call_at(due, self._timer_expired)
            return None
        del self._due[urgency][uid]
        return uid

    def _timer_expired(self) -> None:
        self._timer = None
        self._pump()

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # `stop` cancels the tasks; it must not start new ones.
        if not task.cancelled():
            self._pump()

    def _patch(self, known: _ReportedPod) -> dict[str, Any]:
        if known.ours is None:
            return {}
        now = datetime.fromtimestamp(self._clock(), UTC)
        wanted = status_to_send(known.ours, known.server, known.meta, may_run=known.may_run, now=now)
        patch = status_patch(known.server, wanted)
        return {} if patch == known.residue else patch

    def _is_to_delete(self, known: _ReportedPod) -> bool:
        is_deleted = known.meta.deletion_timestamp is not None
        return known.removed and is_deleted and known.server.phase in TERMINAL and not known.deleted

    async def _work(self, uid: str, known: _ReportedPod, patch: dict[str, Any]) -> None:
        try:
            await self._send(known, patch)
        # Any failure is retried: a report that is lost stays lost until the pod changes again.
        except Exception as error:
            if isinstance(error, ApiError) and error.code == 404:
                log.info("%s; the pod no longer exists", error)
                # Without a status nothing is sent; the watch will report the deletion.
                known.ours = None
            else:
                self._retry(uid, known, error)
        else:
            known.failures = 0
        finally:
            known.busy = False
            _wake_waiters(known)
        if known.again:
            known.again = False
            if uid in self._pods:
                self._mark(uid)

    async def _send(self, known: _ReportedPod, patch: dict[str, Any]) -> None:
        if patch:
            # The uid is a precondition: a new pod may have the same name.
            body = {"metadata": {"uid": known.meta.uid}, "status": patch}
            answer = await self._client.patch(f"{known.path}/status", body, _Answer)
            if answer.metadata.uid == known.meta.uid and is_newer(answer.metadata, known.meta):
                generation = known.meta.generation
                known.meta, known.server = answer.metadata, answer.status
                known.meta.generation = generation  # the node has not received the newer version yet
                # The server drops unknown fields, and admission may revert others. A patch of only these
                # fields would be sent forever, so it is stored as residue, and not sent until the status
                # changes.
                known.residue = {}
                known.residue = self._patch(known) if not known.again else {}
                _wake_waiters(known)
        if self._is_to_delete(known):
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                # The server removes the object only with 0; this confirms that the node has terminated the
                # pod.
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": known.meta.uid},
            }
            await self._client.delete(known.path, options)
            known.deleted = True

    def _retry(self, uid: str, known: _ReportedPod, error: Exception) -> None:
        if self._pods.get(uid) is not known:
            return
        known.failures += 1
        if known.failures == 1 and not isinstance(error, Unavailable):
            if isinstance(error, KubengineError):
                log.warning("%s", error)
            else:
                log.error("pod %s: cannot report its status", known.meta.name, exc_info=error)
        delay = RETRIES.after(known.failures)
        self._timers[uid] = asyncio.get_running_loop().call_later(delay, self._try_again, uid)

    def _try_again(self, uid: str) -> None:
        self._timers.pop(uid, None)
        if uid in self._pods:
            self._mark(uid)


def _urgency(known: _ReportedPod) -> _Urgency:
    ours, server = known.ours, known.server
    if ours is not None and is_ready(ours) != is_ready(server):
        return _Urgency.READINESS
    is_ending = known.removed or known.meta.deletion_timestamp is not None
    if is_ending or known.answered is not None or (ours is not None and ours.phase != server.phase):
        return _Urgency.PHASE
    return _Urgency.DETAIL


def _wake_waiters(known: _ReportedPod) -> None:
    """Wake the coroutines that wait for reports of the pod."""
    if known.answered is not None:
        known.answered.set()
        known.answered = None
