"""The node's pods: one worker each, following the desired list; strangers in the runtime are ended.

Pods are admitted one after another, in the order in which they came, so that every decision sees the
ones before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from engine.api.errors import KubengineError
from engine.api.events import WARNING
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.node.runtime_state import PodRecord
from engine.node.services import Services
from engine.node.worker import PodWorker

log = logging.getLogger("kubengine.pods")

Admit = Callable[[Pod], Awaitable[None]]


class NodePods:
    """`admit(pod)` raises `AdmissionRejected`; `accepted(pod)` is told before a pod is started."""

    def __init__(
        self,
        services: Services,
        *,
        admit: Admit,
        accepted: Callable[[Pod], None],
    ) -> None:
        self._services = services
        self._admit = admit
        self._accepted = accepted
        self._workers: dict[str, PodWorker] = {}
        self._pending: dict[str, Pod] = {}
        self._arrived = asyncio.Event()
        self._sources_ready = False
        self._task: asyncio.Task[None] | None = None
        self._followers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._admit_in_order(), name="admission")

    async def stop(self) -> None:
        """Leaves the pods running."""
        tasks = [task for task in (self._task, *self._followers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.abandon() for worker in self._workers.values()))

    async def remove_all(self) -> None:
        """Ends every pod and waits until nothing is left of any."""
        self.set_desired([])
        await asyncio.gather(*(worker.gone.wait() for worker in list(self._workers.values())))

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
                self._pending[uid] = pod
            elif known.wanted.spec != pod.spec:
                known.update(pod)
        self._arrived.set()
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
        return [w.pod for w in self._workers.values() if w.pod.spec.containers and not w.gone.is_set()]

    def active(self) -> list[Pod]:
        """Pods that hold, or will hold, resources of the node."""
        return [w.pod for w in self._workers.values() if w.active and w.pod.spec.containers]

    def get(self, uid: str) -> PodWorker | None:
        return self._workers.get(uid)

    def is_gone(self, uid: str) -> bool:
        """Nothing of the pod is wanted any more: its manifest has gone and its containers have stopped."""
        worker = self._workers.get(uid)
        if worker is None:
            return uid not in self._pending
        return worker.removing and worker.stopped.is_set()

    def is_over(self, uid: str) -> bool:
        """The pod has ended, for whatever reason."""
        worker = self._workers.get(uid)
        return self.is_gone(uid) or (worker is not None and (worker.finished or worker.stopped.is_set()))

    async def kill(self, pod: Pod, end: PodEnd) -> None:
        """`engine.api.lifecycle.KillPod`."""
        worker = self._workers.get(pod.uid)
        if worker is not None:
            await worker.end_and_wait(end)

    async def _admit_in_order(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._pending:
                uid = next(iter(self._pending))
                previous = self._workers.get(uid)
                if previous is not None:
                    await previous.gone.wait()
                pod = self._pending.pop(uid, None)
                if pod is not None:
                    await self._take(pod)

    async def _take(self, pod: Pod) -> None:
        rejected: PodEnd | None = None
        try:
            await self._admit(pod)
        except AdmissionRejected as error:
            rejected = PodEnd(error.reason, error.message)
        except KubengineError as error:
            rejected = PodEnd("UnexpectedAdmissionError", str(error))
        except Exception as error:
            log.exception("pod %s: admission failed", pod.full_name)
            rejected = PodEnd("UnexpectedAdmissionError", f"{type(error).__name__}: {error}")
        namesake = next(
            (w for w in self._workers.values() if w.pod.full_name == pod.full_name and not w.gone.is_set()),
            None,
        )
        worker = self._workers[pod.uid] = PodWorker(pod, self._services, after=namesake)
        if rejected is not None:
            self._services.recorder.pod(pod, WARNING, rejected.reason, rejected.message)
            worker.end(rejected)
        else:
            self._accepted(pod)
        self._follow(worker)

    def _follow(self, worker: PodWorker) -> None:
        task = asyncio.create_task(self._until_gone(worker))
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def _until_gone(self, worker: PodWorker) -> None:
        stopped = worker.stopped
        await stopped.wait()
        self._services.released(worker.pod)
        self.room_was_made()
        await worker.gone.wait()
        if self._workers.get(worker.pod.uid) is worker:
            del self._workers[worker.pod.uid]

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
        worker = self._workers[uid] = PodWorker(Pod(metadata=meta, spec=PodSpec()), self._services)
        worker.remove()
        self._follow(worker)

    def _has_leftovers(self, uid: str) -> bool:
        services = self._services
        return uid in services.volumes.known_uids() or uid in services.cgroups.existing_pods()
