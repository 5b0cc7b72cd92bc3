"""Manages the pods of the node: one worker per pod, following the desired list; ends orphaned pods.

What runs is known before new pods are admitted. Pods that an earlier agent left running are adopted with
everything they hold, and those that no source wants begin to end, before the first new pod is examined. New
pods are admitted one after another, in the order of their arrival, so that each decision sees the ones
before it; a pod that has to wait does not hold up others. A pod whose predecessor of the same name still
runs (an edited manifest) is admitted without counting the predecessor, and starts when that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from engine.admission.verdict import Verdict
from engine.api.errors import KubengineError, Refused
from engine.api.lifecycle import AdmissionRejected, PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.api.qos import is_static
from engine.api.status import PodStatus
from engine.cri.records import PodRecord
from engine.node import pod_admission
from engine.node.pod.life import STOPPING, LifeState, PodLife
from engine.node.pod_admission import PodAdmission, is_of_the_machine
from engine.node.sources.pod_sink import LEAST_GRACE_SECONDS, MANIFEST_URL, MANIFESTS
from engine.node.sync.actions import pod_is_finished
from engine.node.sync.operations import PodOperations
from engine.node.sync.resize_metrics import Trigger
from engine.node.sync.services import Services
from engine.node.sync.status import FAILED, SUCCEEDED
from engine.node.sync.worker import PodWorker

log = logging.getLogger("kubengine.pods")

_T = TypeVar("_T")

UNEXPECTED = "UnexpectedAdmissionError"


class PodManager:
    """Manage the pods of the node. Pods that no source wants are ended once every source has been read."""

    def __init__(self, services: Services, admission: PodAdmission) -> None:
        url = [MANIFEST_URL] if services.context.config.static_pod_url else []
        self._wanted: dict[str, set[str]] = {
            source: set() for source in (*services.control_plane.sources, *url)
        }
        self._unseen = set(self._wanted)
        self._services = services
        self._operations = PodOperations(services)
        self._admission = admission
        self._workers: dict[str, PodWorker] = {}
        self._same_name: dict[str, list[PodWorker]] = {}
        self._returning: dict[str, Pod] = {}
        self._found: dict[str, Pod] | None = None
        """Pods that run from before and have no worker yet; None until the node has looked for them."""
        self._unaccounted: set[PodWorker] = set()
        """Workers of orphaned pods whose resources are unknown; new pods wait until these have stopped."""
        self._unsatisfied: set[PodWorker] = set()
        """Workers of pods that may wait for resources: not admitted, or with a pending resize."""
        self._leftovers_ended = False
        """Whether pods that ended while no agent ran, and left directories or cgroups, have been ended."""
        self._retrying: asyncio.Handle | None = None
        self._retrying_later: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """Stop, and leave the pods running."""
        self._cancel_retries()
        self._returning.clear()
        await asyncio.gather(*(worker.abandon() for worker in self._workers.values()))
        await self._operations.stopper.stop()

    async def remove_all(self) -> None:
        """End every pod and wait until nothing is left of any."""
        for source in self._wanted:
            self.set_desired([], source)
        await asyncio.gather(*(worker.wait_gone() for worker in list(self._workers.values())))

    @property
    def known(self) -> bool:
        """Tell whether every source has been read once."""
        return not self._unseen

    def set_desired(self, pods: Sequence[Pod], source: str = MANIFESTS) -> None:
        """Set the complete list of pods that one source wants on this node."""
        if self._found is None:
            self._found = self._count_what_runs()
        before, self._wanted[source] = self._wanted[source], {pod.uid for pod in pods}
        for uid in before - self._wanted[source]:
            self._drop(uid)
        # Adopt what runs and begin to end orphans before the first new pod is judged: their amounts, ports
        # and devices are counted, or about to be free, by then.
        new = [pod for pod in pods if not self._update_known(pod)]
        is_news = source in self._unseen
        self._unseen.discard(source)
        if self.known:
            self._end_orphaned_pods()
        for pod in new:
            self._start_worker(pod, PodLife())
        if is_news and self.known:
            self._admission.pods_known()

    def update_pod(self, pod: Pod, source: str) -> None:
        """Add or update one pod of a source."""
        self._wanted[source].add(pod.uid)
        if not self._update_known(pod):
            self._start_worker(pod, PodLife())

    def remove_pod(self, uid: str, source: str, grace: int | None = None) -> None:
        """Remove a pod that its source no longer has; `grace` in seconds, None for the pod's own."""
        self._wanted[source].discard(uid)
        self._drop(uid, grace)

    def update_conditions(self, uid: str, status: PodStatus) -> None:
        """Adopt the conditions that other clients write into a pod's status in the API."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update_conditions(status)

    def _drop(self, uid: str, grace: int | None = None) -> None:
        """Stop wanting a pod for one source; the pod stays while another source wants it."""
        if any(uid in wanted for wanted in self._wanted.values()):
            return
        self._returning.pop(uid, None)
        worker = self._workers.get(uid)
        if worker is not None:
            worker.remove(grace)

    def _update_known(self, pod: Pod) -> bool:
        """Update a pod that is already here or is terminating; return whether there is one."""
        uid, is_ending = pod.uid, pod.metadata.deletion_timestamp is not None
        known = self._workers.get(uid)
        if known is None:
            life = self._life_so_far(pod)
            if life.state is LifeState.ADMITTING and not is_ending:
                return False
            known = self._adopt(pod, life)
        elif known.life.wanted:
            if known.wanted.spec != pod.spec and not (is_ending or self._is_refused(known)):
                self._update(known, pod)
            elif known.wanted.metadata != pod.metadata:
                known.describe(pod.metadata)
        elif is_ending:
            # Clients of the API may change labels of a pod while it ends, and see that here, too.
            if known.wanted.metadata != pod.metadata:
                known.describe(pod.metadata)
        else:
            # It is wanted again while it ends: the new one starts when nothing of the old one is left.
            self._returning[uid] = pod
        if is_ending:
            # With a grace period of 0 the API server deletes the object at once; containers get a moment.
            known.remove(max(pod.metadata.deletion_grace_period_seconds or 0, LEAST_GRACE_SECONDS))
        return True

    def _update(self, worker: PodWorker, pod: Pod) -> None:
        self._unsatisfied.add(worker)
        worker.update(pod)

    def _is_refused(self, worker: PodWorker) -> bool:
        """Tell whether a pod of the API was rejected before and so has failed for good; static pods are tried
        again.
        """
        return worker.life.state is LifeState.REJECTED and not is_static(worker.pod)

    def runtime_changed(self, uid: str) -> None:
        """Handle a changed runtime record of a pod."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.notify()
        elif self.known:
            self._end_orphan(self._services.runtime.watch.pod(uid))
        elif not self._services.runtime.watch.pod(uid).alive:
            self._forget_found(uid)

    def notify(self, uid: str) -> None:
        """Wake the worker of a pod, because a probe or a device changed."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.notify()

    def something_changed(self, trigger: Trigger = "periodic_retry") -> None:
        """Retry waiting resizes and rejected pods, because something changed; many changes cause
        one retry, counted under the first.
        """
        if self._retrying is None:
            self._services.metrics.resizes.trigger = trigger
            # Later in the loop, so that many changes at once (a drained node) lead to one retry.
            self._retrying = asyncio.get_running_loop().call_soon(self._try_again)

    def _try_again_later(self) -> None:
        if self._retrying_later is None:
            later = asyncio.get_running_loop().call_later(pod_admission.RETRY_SECONDS, self._try_again)
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
        self._unsatisfied = {worker for worker in self._unsatisfied if worker.may_need_resources}
        # In the order in which the pods came, which a set would not keep.
        for worker in [each for each in self._workers.values() if each in self._unsatisfied]:
            if worker.waits_for_resources:
                worker.notify()
            elif worker.life.state is LifeState.REJECTED and not self._is_refused(worker):
                self._services.metrics.retried()
                worker.retry()

    def all(self) -> list[Pod]:
        """Return every known pod with its status, including rejected and finished ones."""
        return [w.pod for w in self._workers.values() if w.pod.spec.containers and not w.gone]

    def get(self, uid: str) -> Pod | None:
        """Return the pod as the node has it."""
        worker = self._workers.get(uid)
        return worker.pod if worker is not None else None

    def active(self) -> list[Pod]:
        """Return the pods that hold, or will hold, resources of the node."""
        return [w.pod for w in self._workers.values() if w.life.holds and w.pod.spec.containers]

    def is_gone(self, uid: str) -> bool:
        """Tell whether the pod is gone: no source wants it and its containers have stopped."""
        worker = self._workers.get(uid)
        if worker is None:
            return self.known
        return not worker.life.wanted and worker.life.over

    def is_over(self, uid: str) -> bool:
        """Tell whether the pod has ended, for any reason."""
        worker = self._workers.get(uid)
        return self.is_gone(uid) or (worker is not None and worker.life.over)

    def may_run(self, uid: str) -> bool:
        """Tell whether something of the pod runs or will run; true while that is unknown."""
        worker = self._workers.get(uid)
        if worker is not None:
            return worker.life.holds
        # While a source has not been read, the pod may still be wanted: nothing of it may be freed.
        return not self.known or self._services.runtime.watch.pod(uid).alive

    def is_terminating(self, uid: str) -> bool:
        """Tell whether the pod terminates while something of it may still run."""
        worker = self._workers.get(uid)
        return worker is not None and worker.life.state in STOPPING

    async def kill(self, pod: Pod, end: PodEnd) -> None:
        """Kill a pod; implements `engine.api.lifecycle.KillPod`."""
        worker = self._workers.get(pod.uid)
        # A victim of preemption may be a pod that runs from before and that no source has named yet.
        if worker is None and self._found is not None and pod.uid in self._found:
            worker = self._start_worker(self._found.pop(pod.uid), PodLife(LifeState.WORKING))
        if worker is not None:
            await worker.end_and_wait(end)

    async def wait_volumes_removed(self, pod: Pod) -> None:
        """Return when a pod that has ended no longer has a volume."""
        worker = self._workers.get(pod.uid)
        if worker is not None:
            await worker.wait_volumes_removed()

    # Admission of pods

    def _life_so_far(self, pod: Pod) -> PodLife:
        """Return the life of a pod as an earlier agent and the runtime know it, and update its status
        accordingly.
        """
        kept = self._services.records.terminations.read(pod.uid)
        if kept is not None:
            pod.status = kept.status or pod.status
            return kept.life
        record = self._services.runtime.watch.pod(pod.uid)
        if pod.status.phase in (SUCCEEDED, FAILED):
            if not record.alive:
                return PodLife(LifeState.FINISHED)
            return PodLife(LifeState.FAILING, PodEnd(pod.status.reason, pod.status.message))
        return PodLife(
            LifeState.WORKING if record.alive or _has_finished(pod, record) else LifeState.ADMITTING
        )

    def _count_what_runs(self) -> dict[str, Pod]:
        """Count running pods with the amounts that they were accepted with, whether or not a source wants
        them.
        """
        found = {}
        for record in self._services.runtime.watch.pods.values():
            pod = self._services.records.accepted.read(record.uid) if record.alive else None
            if pod is not None:
                self._admission.adopt(pod)
                found[record.uid] = pod
        return found

    def _forget_found(self, uid: str) -> None:
        pod = self._found.pop(uid, None) if self._found is not None else None
        if pod is not None:
            self._admission.released(pod)

    def _adopt(self, pod: Pod, life: PodLife) -> PodWorker:
        """Adopt a running pod; if it was accepted with other amounts than are wanted, it is resized."""
        found = self._found.pop(pod.uid, None) if self._found is not None else None
        here = pod
        if life.holds and self._services.runtime.watch.pod(pod.uid).alive:
            if found is not None:
                here = Pod(metadata=pod.metadata, spec=found.spec, status=pod.status)
            self._admission.adopt(here)
        elif found is not None:
            self._admission.released(found)
        worker = self._start_worker(here, life)
        if life.state is LifeState.WORKING:
            self._services.probes.accepted(here)
        if here.spec != pod.spec:
            self._update(worker, pod)
        return worker

    async def _enter(self, worker: PodWorker) -> None:
        """Admit a pod. A pod that the machine refuses is retried within `admission.patience`. Raises
        `AdmissionRejected`.
        """
        wait = self._admission.wait_for_machine(worker.waits_for)
        while True:
            try:
                await self._admit_once(worker)
            except AdmissionRejected as rejected:
                if not is_of_the_machine(rejected):
                    raise
                if not await wait.wait_for_retry(rejected):
                    self._try_again_later()
                    raise
            else:
                return

    async def _admit_once(self, worker: PodWorker) -> None:
        pod = worker.pod
        await self._admission.ready_to_judge(pod, worker.waits_for)
        verdict = await _or_rejected(pod, self._judge(pod))
        # Judged without its predecessor, but started after it. Of an API pod whose predecessor was deleted by
        # force, only containers must not run twice: volumes or claims may keep that one for good.
        earlier = [other for other in self._same_name[pod.full_name] if other is not worker]
        leaving = [other for other in earlier if not other.life.wanted]
        static = is_static(pod)
        await asyncio.gather(*(each.wait_gone() if static else each.wait_at_rest() for each in leaving))
        # What they hold is unknown, so that no judgement is right before they have stopped.
        await asyncio.gather(*(orphan.wait_at_rest() for orphan in self._unaccounted))
        await _or_rejected(pod, self._complete_admission(worker, verdict))
        self._unsatisfied.discard(worker)

    async def _judge(self, pod: Pod) -> Verdict:
        return self._admission.judge(pod)

    async def _complete_admission(self, worker: PodWorker, verdict: Verdict) -> None:
        pod = worker.pod
        await self._admission.complete(pod, verdict, worker.waits_for)
        try:
            self._services.probes.accepted(pod)
        except Exception:
            self._admission.released(pod)
            raise

    def _start_worker(
        self, pod: Pod, life: PodLife, past: Mapping[str, int] = MappingProxyType({})
    ) -> PodWorker:
        worker = PodWorker(
            pod,
            self._services,
            self._operations,
            life=life,
            enter=self._enter,
            moved_on=self._on_transition,
            past=past,
        )
        if life.state is LifeState.ADMITTING:
            self._unsatisfied.add(worker)
        self._workers[pod.uid] = worker
        self._same_name.setdefault(pod.full_name, []).append(worker)
        return worker

    def _on_transition(self, worker: PodWorker) -> None:
        self._unaccounted.discard(worker)
        over: Trigger = "pods_removed" if worker.gone else "pod_terminated"
        self.something_changed("pod_resized" if worker.life.holds else over)
        self._services.control_plane.pod_changed(worker.pod, may_run=worker.life.holds)
        if not worker.gone:
            return
        for listener in self._services.listeners:
            listener.pod_gone(worker.pod)
        self._unsatisfied.discard(worker)
        uid, name = worker.pod.uid, worker.pod.full_name
        # A pod with the same uid may have started again meanwhile (a static pod).
        if self._workers.get(uid) is worker:
            del self._workers[uid]
        self._same_name[name].remove(worker)
        if not self._same_name[name]:
            del self._same_name[name]
        back = self._returning.pop(uid, None)
        if back is not None:
            self._services.metrics.restarted(static=is_static(back))
            self._start_worker(back, PodLife(), worker.past)

    # Orphaned pods

    def _end_orphaned_pods(self) -> None:
        """End orphaned pods; the first time also those known only from disk or cgroups, which nobody else
        adds to.
        """
        wanted = set[str]().union(*self._wanted.values())
        for uid in self._workers.keys() - wanted:
            self._drop(uid)
        # A copy, because starting a worker may change the records.
        for uid, record in list(self._services.runtime.watch.pods.items()):
            if uid not in wanted:
                self._end_orphan(record)
        if self._leftovers_ended:
            return
        cgroups = self._services.allocations.cgroups
        for uid in self._services.volumes.directories.known_uids() | cgroups.existing_pods().keys():
            if uid not in wanted:
                self._end_orphan(PodRecord(uid, "", ""))
        self._leftovers_ended = True

    def remove_leftovers(self) -> None:
        """Remove what appeared of pods after their end: directories and cgroups.

        A runtime may carry out a start that was cancelled, and make the pod's cgroup again; a kubelet that
        ran before may have stopped without removing those of finished pods.
        """
        if not self._leftovers_ended:
            return
        cgroups, watch = self._services.allocations.cgroups, self._services.runtime.watch
        existing = cgroups.existing_pods().keys()
        for uid in existing:
            worker = self._workers.get(uid)
            if worker is not None and worker.life.over and not watch.pod(uid).alive:
                try:
                    cgroups.remove_pod(uid)
                except Refused as error:
                    log.warning("pod %s: its cgroup stays: %s", worker.pod.full_name, error)
        for uid in (self._services.volumes.directories.known_uids() | existing) - self._workers.keys():
            self._end_orphan(watch.pods.get(uid) or PodRecord(uid, "", ""))

    def _end_orphan(self, record: PodRecord) -> None:
        """End a pod whose source dropped it while no agent ran, and remove everything of it.

        The pod holds what it was accepted with until it has stopped. If that is unknown, new pods wait for
        it.
        """
        uid = record.uid
        if uid in self._workers or (record.empty and not record.name and not self._has_leftovers(uid)):
            return
        if not record.empty:
            self._services.metrics.orphaned()
        log.info("pod %s (%s) is no longer desired; terminating it", record.full_name, uid)
        found = self._found.pop(uid, None) if self._found is not None else None
        accepted = found or self._services.records.accepted.read(uid)
        if accepted is None:
            meta = ObjectMeta(name=record.name or uid, namespace=record.namespace or "unknown", uid=uid)
            orphan = self._start_worker(Pod(metadata=meta, spec=PodSpec()), PodLife(LifeState.LEAVING))
            if record.alive:
                log.warning(
                    "pod %s: its resources are unknown; new pods wait until it has terminated",
                    record.full_name,
                )
                self._unaccounted.add(orphan)
            return
        if record.alive:
            self._admission.adopt(accepted)
        self._start_worker(accepted, PodLife(LifeState.LEAVING))
        # After the worker exists, whose end releases what the pod holds.
        self._admission.terminating(uid)

    def _has_leftovers(self, uid: str) -> bool:
        services = self._services
        cgroups = services.allocations.cgroups
        known = cgroups.has_pod(uid) or uid in services.volumes.directories.known_uids()
        return known or uid in cgroups.existing_pods()


def _has_finished(pod: Pod, record: PodRecord) -> bool:
    return not record.empty and pod_is_finished(pod, record)


async def _or_rejected(pod: Pod, decision: Awaitable[_T]) -> _T:
    """Turn an unexpected failure of the decision into a rejection of the pod."""
    try:
        return await decision
    except AdmissionRejected:
        raise
    except (KubengineError, OSError) as error:
        raise AdmissionRejected(UNEXPECTED, str(error)) from error
    except Exception as error:
        log.exception("pod %s: admission failed", pod.full_name)
        raise AdmissionRejected(UNEXPECTED, f"{type(error).__name__}: {error}") from error
