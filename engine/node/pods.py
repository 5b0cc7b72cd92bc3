"""The node's pods: one worker each, following the desired list; orphaned_pods in the runtime are ended.

What runs is known before what is new is judged: pods that an earlier agent left running are adopted with
all they hold, and those that nobody wants any more begin to end, before the first new pod is looked at.
New pods are judged one after another, in the order in which they came, so that every decision sees the
ones before it; one that has to wait for something holds up nobody. A pod whose namesake still runs (an
edited manifest) is judged without it, and starts when it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from engine.admission.verdict import Verdict
from engine.api.errors import KubengineError
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.api.qos import is_static
from engine.api.status import PodCondition
from engine.cri.records import PodRecord
from engine.node.nodeinfo import machine_faults
from engine.node.nodeinfo.machine_faults import is_of_the_machine
from engine.node.pod.life import STOPPING, LifeState, PodLife
from engine.node.pod_admission import PodAdmission
from engine.node.sources.pod_sink import LEAST_GRACE_SECONDS, MANIFEST_URL, MANIFESTS
from engine.node.sync.actions import pod_is_finished
from engine.node.sync.services import Services
from engine.node.sync.status import FAILED, SUCCEEDED
from engine.node.sync.worker import PodWorker

log = logging.getLogger("kubengine.pods")

_T = TypeVar("_T")

UNEXPECTED = "UnexpectedAdmissionError"


class PodManager:
    """What no source wants is ended once each source of the node has been read."""

    def __init__(self, services: Services, gatekeeper: PodAdmission) -> None:
        url = [MANIFEST_URL] if services.node.config.static_pod_url else []
        self._wanted: dict[str, set[str]] = {source: set() for source in (*services.belonging.sources, *url)}
        self._unseen = set(self._wanted)
        self._services = services
        self._gatekeeper = gatekeeper
        self._workers: dict[str, PodWorker] = {}
        self._namesakes: dict[str, list[PodWorker]] = {}
        self._returning: dict[str, Pod] = {}
        self._found: dict[str, Pod] | None = None
        """What runs from before and has no worker yet; None until it was looked for."""
        self._unaccounted: set[PodWorker] = set()
        self._unsatisfied: set[PodWorker] = set()
        """Those that may want room that they have not got: not taken in, or with a resize."""
        self._leftovers_ended = False
        """Of pods that no agent saw end: looked for once."""
        self._retrying: asyncio.Handle | None = None
        self._retrying_later: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """Leaves the pods running."""
        self._cancel_retries()
        self._returning.clear()
        await asyncio.gather(*(worker.abandon() for worker in self._workers.values()))

    async def remove_all(self) -> None:
        """Ends every pod and waits until nothing is left of any."""
        for source in self._wanted:
            self.set_desired([], source)
        await asyncio.gather(*(worker.wait_gone() for worker in list(self._workers.values())))

    @property
    def known(self) -> bool:
        """Whether every source has been read once."""
        return not self._unseen

    def set_desired(self, pods: Sequence[Pod], source: str = MANIFESTS) -> None:
        """The whole list of pods that one source wants here."""
        if self._found is None:
            self._found = self._count_what_runs()
        before, self._wanted[source] = self._wanted[source], {pod.uid for pod in pods}
        for uid in before - self._wanted[source]:
            self._drop(uid)
        new = [pod for pod in pods if not self._goes_on(pod)]
        self._unseen.discard(source)
        if self.known:
            self._end_strangers()
        for pod in new:
            self._start_worker(pod, PodLife())

    def put(self, pod: Pod, source: str) -> None:
        """One pod of a source that is new or has changed."""
        self._wanted[source].add(pod.uid)
        if not self._goes_on(pod):
            self._start_worker(pod, PodLife())

    def remove_pod(self, uid: str, source: str, grace: int | None = None) -> None:
        """A source has a pod no more; `grace` in seconds, the pod's own if None."""
        self._wanted[source].discard(uid)
        self._drop(uid, grace)

    def hear(self, uid: str, conditions: Sequence[PodCondition]) -> None:
        """The conditions that the API has of a pod."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.hear(conditions)

    def _drop(self, uid: str, grace: int | None = None) -> None:
        """A source wants a pod no more; it stays while another one does."""
        if any(uid in wanted for wanted in self._wanted.values()):
            return
        self._returning.pop(uid, None)
        worker = self._workers.get(uid)
        if worker is not None:
            worker.remove(grace)

    def _goes_on(self, pod: Pod) -> bool:
        """Whether the pod is here already, or is on its way out; it is brought up to date then."""
        uid, leaves = pod.uid, pod.metadata.deletion_timestamp is not None
        known = self._workers.get(uid)
        if known is None:
            life = self._life_so_far(pod)
            if life.state is LifeState.ENTERING and not leaves:
                return False
            known = self._adopt(pod, life)
        elif known.life.wanted:
            if known.wanted.spec != pod.spec and not (leaves or self._is_refused(known)):
                self._update(known, pod)
            elif known.wanted.metadata != pod.metadata:
                known.describe(pod.metadata)
        elif not leaves:
            self._returning[uid] = pod
        if leaves:
            known.remove(max(pod.metadata.deletion_grace_period_seconds or 0, LEAST_GRACE_SECONDS))
        return True

    def _update(self, worker: PodWorker, pod: Pod) -> None:
        self._unsatisfied.add(worker)
        worker.update(pod)

    def _is_refused(self, worker: PodWorker) -> bool:
        """A pod of the API that was rejected has failed for good; what a manifest asks for is tried again."""
        return worker.life.state is LifeState.REJECTED and not is_static(worker.pod)

    def runtime_changed(self, uid: str) -> None:
        """The runtime's record of a pod changed."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.notify()
        elif self.known:
            self._end_stranger(self._services.watch.pod(uid))
        elif not self._services.watch.pod(uid).alive:
            self._forget_found(uid)

    def notify(self, uid: str) -> None:
        """Something else about a pod changed: a probe, a device."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.notify()

    def something_changed(self) -> None:
        """Resizes that had to wait may fit now, and pods that were rejected; looked at once for many."""
        if self._retrying is None:
            self._retrying = asyncio.get_running_loop().call_soon(self._try_again)

    def _try_again_later(self) -> None:
        if self._retrying_later is None:
            later = asyncio.get_running_loop().call_later(machine_faults.RETRY_SECONDS, self._try_again)
            self._retrying_later = later

    def _cancel_retries(self) -> None:
        for due in (self._retrying, self._retrying_later):
            if due is not None:
                due.cancel()
        self._retrying = self._retrying_later = None

    def _try_again(self) -> None:
        self._cancel_retries()
        if not self._unsatisfied:
            return
        self._unsatisfied = {worker for worker in self._unsatisfied if worker.may_want_room}
        for worker in [each for each in self._workers.values() if each in self._unsatisfied]:
            if worker.waits_for_room:
                worker.notify()
            elif worker.life.state is LifeState.REJECTED and not self._is_refused(worker):
                self._services.metrics.retried()
                worker.retry()

    def all(self) -> list[Pod]:
        """Every pod that was asked for, with status, rejected and finished ones included."""
        return [w.pod for w in self._workers.values() if w.pod.spec.containers and not w.gone]

    def get(self, uid: str) -> Pod | None:
        """The pod as the node has it."""
        worker = self._workers.get(uid)
        return worker.pod if worker is not None else None

    def active(self) -> list[Pod]:
        """Pods that hold, or will hold, resources of the node."""
        return [w.pod for w in self._workers.values() if w.life.holds and w.pod.spec.containers]

    def is_gone(self, uid: str) -> bool:
        """Nothing of the pod is wanted any more: its manifest has gone and its containers have stopped."""
        worker = self._workers.get(uid)
        if worker is None:
            return self.known
        return not worker.life.wanted and worker.life.over

    def is_over(self, uid: str) -> bool:
        """The pod has ended, for whatever reason."""
        worker = self._workers.get(uid)
        return self.is_gone(uid) or (worker is not None and worker.life.over)

    def may_run(self, uid: str) -> bool:
        """Whether something of the pod runs or will; true as long as it is not known."""
        worker = self._workers.get(uid)
        if worker is not None:
            return worker.life.holds
        return not self.known or self._services.watch.pod(uid).alive

    def leaves(self, uid: str) -> bool:
        """Whether the pod is to end and something of it may run."""
        worker = self._workers.get(uid)
        return worker is not None and worker.life.state in STOPPING

    async def kill(self, pod: Pod, end: PodEnd) -> None:
        """`engine.api.lifecycle.KillPod`."""
        worker = self._workers.get(pod.uid)
        if worker is None and self._found is not None and pod.uid in self._found:
            worker = self._start_worker(self._found.pop(pod.uid), PodLife(LifeState.WORKING))
        if worker is not None:
            await worker.end_and_wait(end)

    # Taking pods in

    def _life_so_far(self, pod: Pod) -> PodLife:
        """What an earlier agent and the runtime tell of a pod; its status is brought up to that."""
        kept = self._services.ends.read(pod.uid)
        if kept is not None:
            pod.status = kept.status or pod.status
            return kept.life
        record = self._services.watch.pod(pod.uid)
        if pod.status.phase in (SUCCEEDED, FAILED):
            if not record.alive:
                return PodLife(LifeState.FINISHED)
            return PodLife(LifeState.FAILING, PodEnd(pod.status.reason, pod.status.message))
        return PodLife(
            LifeState.WORKING if record.alive or _has_finished(pod, record) else LifeState.ENTERING
        )

    def _count_what_runs(self) -> dict[str, Pod]:
        """Whoever wants it, and whenever that will be known: what runs holds what it was accepted with."""
        found = {}
        for record in self._services.watch.pods.values():
            pod = self._services.accepted.read(record.uid) if record.alive else None
            if pod is not None:
                self._gatekeeper.adopt(pod)
                found[record.uid] = pod
        return found

    def _forget_found(self, uid: str) -> None:
        pod = self._found.pop(uid, None) if self._found is not None else None
        if pod is not None:
            self._gatekeeper.released(pod)

    def _adopt(self, pod: Pod, life: PodLife) -> PodWorker:
        """A pod that was accepted with other amounts than are wanted now has those, and is resized."""
        found = self._found.pop(pod.uid, None) if self._found is not None else None
        here = pod
        if life.holds and self._services.watch.pod(pod.uid).alive:
            if found is not None:
                here = Pod(metadata=pod.metadata, spec=found.spec, status=pod.status)
            self._gatekeeper.adopt(here)
        elif found is not None:
            self._gatekeeper.released(found)
        worker = self._start_worker(here, life)
        if life.state is LifeState.WORKING:
            self._services.probes.accepted(here)
        if here.spec != pod.spec:
            self._update(worker, pod)
        return worker

    async def _enter(self, worker: PodWorker) -> None:
        """From asked for to taken. A pod that the machine keeps out is judged again, in the bounds of
        `admission.patience`. Raises `AdmissionRejected`."""
        wait = self._gatekeeper.wait_for_machine(worker.waits_for)
        while True:
            try:
                await self._take_in(worker)
            except AdmissionRejected as rejected:
                if not is_of_the_machine(rejected):
                    raise
                if not await wait.goes_on(rejected):
                    self._try_again_later()
                    raise
            else:
                return

    async def _take_in(self, worker: PodWorker) -> None:
        pod = worker.pod
        await self._gatekeeper.ready_to_judge(pod, worker.waits_for)
        verdict = await _or_rejected(pod, self._judge(pod))
        earlier = [other for other in self._namesakes[pod.full_name] if other is not worker]
        await asyncio.gather(*(other.wait_gone() for other in earlier if not other.life.wanted))
        await asyncio.gather(*(stranger.wait_at_rest() for stranger in self._unaccounted))
        await _or_rejected(pod, self._settle(worker, verdict))
        self._unsatisfied.discard(worker)

    async def _judge(self, pod: Pod) -> Verdict:
        return self._gatekeeper.judge(pod)

    async def _settle(self, worker: PodWorker, verdict: Verdict) -> None:
        pod = worker.pod
        await self._gatekeeper.settle(pod, verdict, worker.waits_for)
        try:
            self._services.probes.accepted(pod)
        except Exception:
            self._gatekeeper.released(pod)
            raise

    def _start_worker(
        self, pod: Pod, life: PodLife, past: Mapping[str, int] = MappingProxyType({})
    ) -> PodWorker:
        worker = PodWorker(
            pod,
            self._services,
            life=life,
            enter=self._enter,
            moved_on=self._on_transition,
            past=past,
        )
        if life.state is LifeState.ENTERING:
            self._unsatisfied.add(worker)
        self._workers[pod.uid] = worker
        self._namesakes.setdefault(pod.full_name, []).append(worker)
        return worker

    def _on_transition(self, worker: PodWorker) -> None:
        self._unaccounted.discard(worker)
        self.something_changed()
        self._services.belonging.pod_changed(worker.pod, may_run=worker.life.holds)
        if not worker.gone:
            return
        self._unsatisfied.discard(worker)
        uid, name = worker.pod.uid, worker.pod.full_name
        if self._workers.get(uid) is worker:
            del self._workers[uid]
        self._namesakes[name].remove(worker)
        if not self._namesakes[name]:
            del self._namesakes[name]
        back = self._returning.pop(uid, None)
        if back is not None:
            self._start_worker(back, PodLife(), worker.past)

    # Strangers

    def _end_strangers(self) -> None:
        """The first time what is on disk and in cgroups too: nobody but this agent adds to that later."""
        wanted = set[str]().union(*self._wanted.values())
        for uid in self._workers.keys() - wanted:
            self._drop(uid)
        for uid, record in list(self._services.watch.pods.items()):
            if uid not in wanted:
                self._end_stranger(record)
        if self._leftovers_ended:
            return
        for uid in self._services.volumes.known_uids() | self._services.cgroups.existing_pods().keys():
            if uid not in wanted:
                self._end_stranger(PodRecord(uid, "", ""))
        self._leftovers_ended = True

    def _end_stranger(self, record: PodRecord) -> None:
        """A pod whose source let go of it while no agent was looking: end it, leave nothing.

        It holds what it was accepted with until it has stopped. Where that is not known, new pods wait until
        it has.
        """
        uid = record.uid
        if uid in self._workers or (record.empty and not record.name and not self._has_leftovers(uid)):
            return
        log.info("pod %s (%s) is not wanted here any more; ending it", record.full_name, uid)
        found = self._found.pop(uid, None) if self._found is not None else None
        accepted = found or self._services.accepted.read(uid)
        if accepted is None:
            meta = ObjectMeta(name=record.name or uid, namespace=record.namespace or "unknown", uid=uid)
            stranger = self._start_worker(Pod(metadata=meta, spec=PodSpec()), PodLife(LifeState.LEAVING))
            if record.alive:
                log.warning("pod %s: what it holds is not known; new pods wait for its end", record.full_name)
                self._unaccounted.add(stranger)
            return
        if record.alive:
            self._gatekeeper.adopt(accepted)
        self._start_worker(accepted, PodLife(LifeState.LEAVING))
        self._gatekeeper.leaves(uid)

    def _has_leftovers(self, uid: str) -> bool:
        services = self._services
        known = services.cgroups.has_pod(uid) or uid in services.volumes.known_uids()
        return known or uid in services.cgroups.existing_pods()


def _has_finished(pod: Pod, record: PodRecord) -> bool:
    return not record.empty and pod_is_finished(pod, record)


async def _or_rejected(pod: Pod, decision: Awaitable[_T]) -> _T:
    """What stops a decision rejects the pod."""
    try:
        return await decision
    except AdmissionRejected:
        raise
    except (KubengineError, OSError) as error:
        raise AdmissionRejected(UNEXPECTED, str(error)) from error
    except Exception as error:
        log.exception("pod %s: admission failed", pod.full_name)
        raise AdmissionRejected(UNEXPECTED, f"{type(error).__name__}: {error}") from error
