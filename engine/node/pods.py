"""The node's pods: one worker each, following the desired list; strangers in the runtime are ended.

Pods are admitted one after another, in the order in which they came, so that every decision sees the
ones before it; one that has to wait for something holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace

from engine.api.errors import KubengineError
from engine.api.events import WARNING
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.cri.records import PodRecord
from engine.node.services import Services
from engine.node.worker import PodWorker

log = logging.getLogger("kubengine.pods")

Admit = Callable[[Pod], Awaitable[None]]


class NodePods:
    """`ready(pod)` returns when the pod may be judged, and holds up nobody else; `admit(pod)` raises
    `AdmissionRejected`; `accepted(pod)` is told before a pod is started."""

    def __init__(
        self,
        services: Services,
        *,
        ready: Admit,
        admit: Admit,
        accepted: Callable[[Pod], None],
    ) -> None:
        self._services = services
        self._ready = ready
        self._admit = admit
        self._accepted = accepted
        self._workers: dict[str, PodWorker] = {}
        self._names: dict[str, PodWorker] = {}
        self._pending: dict[str, Pod] = {}
        self._admitting = asyncio.Lock()
        self._sources_ready = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Leaves the pods running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.abandon() for worker in self._workers.values()))

    async def remove_all(self) -> None:
        """Ends every pod and waits until nothing is left of any."""
        self.set_desired([])
        await asyncio.gather(*(worker.wait_gone() for worker in list(self._workers.values())))

    def set_desired(self, pods: Sequence[Pod]) -> None:
        """The whole list of pods that should be here."""
        self._sources_ready = True
        wanted = {pod.uid: pod for pod in pods}
        for uid in [uid for uid in self._pending if uid not in wanted]:
            del self._pending[uid]
        for uid, worker in self._workers.items():
            if uid not in wanted:
                worker.remove()
        for uid, pod in wanted.items():
            known = self._workers.get(uid)
            if known is None or known.removing:
                if uid not in self._pending:
                    self._spawn(self._arrive(uid))
                self._pending[uid] = pod
            elif known.wanted.spec != pod.spec:
                known.update(pod)
        self._end_strangers()

    def runtime_changed(self, uid: str) -> None:
        """The runtime's record of a pod changed."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.notify()
        elif self._sources_ready and uid not in self._pending:
            self._end_stranger(self._services.watch.pod(uid))

    def notify(self, uid: str) -> None:
        """Something else about a pod changed: a probe, a device."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.notify()

    def room_was_made(self) -> None:
        """Resizes that had to wait may fit now."""
        for worker in self._workers.values():
            if worker.waits_for_room:
                worker.notify()

    def all(self) -> list[Pod]:
        """Every pod that was asked for, with status, rejected and finished ones included."""
        return [w.pod for w in self._workers.values() if w.pod.spec.containers and not w.gone]

    def active(self) -> list[Pod]:
        """Pods that hold, or will hold, resources of the node."""
        return [w.pod for w in self._workers.values() if w.active and w.pod.spec.containers]

    def is_gone(self, uid: str) -> bool:
        """Nothing of the pod is wanted any more: its manifest has gone and its containers have stopped."""
        worker = self._workers.get(uid)
        if worker is None:
            return uid not in self._pending
        return worker.removing and worker.stopped

    def is_over(self, uid: str) -> bool:
        """The pod has ended, for whatever reason."""
        worker = self._workers.get(uid)
        return self.is_gone(uid) or (worker is not None and (worker.finished or worker.stopped))

    async def kill(self, pod: Pod, end: PodEnd) -> None:
        """`engine.api.lifecycle.KillPod`."""
        worker = self._workers.get(pod.uid)
        if worker is not None:
            await worker.end_and_wait(end)

    async def _arrive(self, uid: str) -> None:
        """From desired to admitted: waits for an earlier pod of that uid to be gone, and for its turn."""
        previous = self._workers.get(uid)
        if previous is not None:
            await previous.wait_gone()
        if uid in self._pending:
            await self._ready(self._pending[uid])
        async with self._admitting:
            pod = self._pending.get(uid)
            if pod is not None:
                rejected = await self._judge(pod)
                if self._pending.pop(uid, None) is not None:
                    self._take(pod, rejected)
                else:
                    self._services.released(pod)

    async def _judge(self, pod: Pod) -> PodEnd | None:
        """Why the pod can't be here, None when it can."""
        try:
            await self._admit(pod)
        except AdmissionRejected as error:
            return PodEnd(error.reason, error.message)
        except KubengineError as error:
            return PodEnd("UnexpectedAdmissionError", str(error))
        except Exception as error:
            log.exception("pod %s: admission failed", pod.full_name)
            return PodEnd("UnexpectedAdmissionError", f"{type(error).__name__}: {error}")
        return None

    def _take(self, pod: Pod, rejected: PodEnd | None) -> None:
        worker = self._employ(pod)
        if rejected is not None:
            self._services.recorder.pod(pod, WARNING, rejected.reason, rejected.message)
            worker.end(replace(rejected, message=f"Pod was rejected: {rejected.message}", rejected=True))
        else:
            self._accepted(pod)

    def _employ(self, pod: Pod) -> PodWorker:
        """A worker for the pod; it begins when an earlier pod of the same name is gone."""
        namesake = self._names.get(pod.full_name)
        after = namesake if namesake is not None and not namesake.gone else None
        worker = PodWorker(pod, self._services, moved_on=self._moved_on, after=after)
        self._workers[pod.uid] = self._names[pod.full_name] = worker
        return worker

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _moved_on(self, worker: PodWorker) -> None:
        self.room_was_made()
        if worker.gone:
            for known, key in ((self._workers, worker.pod.uid), (self._names, worker.pod.full_name)):
                if known.get(key) is worker:
                    del known[key]

    def _end_strangers(self) -> None:
        for uid, record in list(self._services.watch.pods.items()):
            if uid not in self._workers and uid not in self._pending:
                self._end_stranger(record)
        for uid in self._services.volumes.known_uids() | self._services.cgroups.existing_pods().keys():
            if uid not in self._workers and uid not in self._pending:
                self._end_stranger(PodRecord(uid, "", ""))

    def _end_stranger(self, record: PodRecord) -> None:
        """A pod whose manifest went away while no agent was looking: end it, leave nothing."""
        uid = record.uid
        if uid in self._workers or (record.empty and not record.name and not self._has_leftovers(uid)):
            return
        log.info("pod %s (%s) is not wanted here any more; ending it", record.full_name, uid)
        meta = ObjectMeta(name=record.name or uid, namespace=record.namespace or "unknown", uid=uid)
        self._employ(Pod(metadata=meta, spec=PodSpec())).remove()

    def _has_leftovers(self, uid: str) -> bool:
        services = self._services
        known = services.cgroups.has_pod(uid) or uid in services.volumes.known_uids()
        return known or uid in services.cgroups.existing_pods()
