"""Play a recorded node again: its pods arrive and leave, its signals change, and every decision is taken a
second time, under the recorded configuration or another one.

What the record does not show is assumed. A pod that is evicted only in the replay ends at once, and its use
is available from then on. A pod that was evicted or preempted only in the record goes on, with the use that
it had last. Pods that are added use the memory that they request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from engine.admission.readmission import ADMITTED
from engine.api.config import KubeletConfiguration, keep_zeros
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, pod_requests
from engine.api.struct import decode_hook
from engine.eviction.signals import (
    CONDITION_OF,
    DISK_PRESSURE,
    MEMORY_AVAILABLE,
    MEMORY_PRESSURE,
    NODEFS_AVAILABLE,
    PID_PRESSURE,
)
from engine.eviction.thresholds import Threshold
from engine.images.measured_run import measured_run
from engine.images.policy import ImageGCPolicy
from engine.plan.replay.admission import AdmissionReplay
from engine.plan.replay.decided import (
    COLLECTED,
    EVICTED,
    IMAGES,
    PREEMPTED,
    REFUSED,
    RESTART,
    Replayed,
    recorded_collection,
)
from engine.plan.replay.images import ImageReplay, repeats_images
from engine.plan.replay.pressure import Freed, PressureReplay, eviction_order
from engine.plan.replay.recorded import BEGINNINGS, NodeRecording, Run
from engine.plan.replay.restarts import RestartReplay
from engine.plan.rollout.amounts import allocatable, changed, settings_of
from engine.record.blocks import RecordRow

Decoded = TypeVar("Decoded")
_RANKING: Final = "ranking "
_PREEMPTION: Final = f"preemption {PREEMPTED}"
_FIELD_OF: Final = {MEMORY_PRESSURE: "memory", PID_PRESSURE: "processes", DISK_PRESSURE: "storage"}
"""What of a pod's use relieves each condition."""


class NodeReplay:
    """Play one node once. `config` None is the recorded configuration; `more` are pods that arrive first.

    `found` are the decisions, in order.
    """

    def __init__(
        self, node: NodeRecording, config: KubeletConfiguration | None = None, more: Sequence[Pod] = ()
    ) -> None:
        self.found: list[Replayed] = []
        self._node, self._given = node, config
        self._more, self._added = list(more), list(more)
        self._run, self._at = 0, 0
        self._places: list[list[int]] = [run.place.tolist() for run in node.signals]
        self._pods: dict[str, Pod] = {}
        self._judged = _judged_arrivals(node)
        self._due: tuple[Threshold, ...] = ()
        self._pending: Replayed | None = None
        self._preempted = {
            row.uid for _, row in node.rows if row.stream == "decision" and row.name == _PREEMPTION
        }
        self._gone: set[str] = set()
        self._leaving: set[str] = set()
        self._spared: dict[str, dict[str, int]] = {}
        self._restarts = RestartReplay(config)
        self._images: ImageReplay | None = None
        self._collected: Counter[str] = Counter()

    def play(self) -> list[Replayed]:
        """Return the decisions. Raise `InvalidInput` for a record that cannot be played."""
        for place, row in self._node.rows:
            self._rounds(place)
            self._row(place, row)
        self._rounds(None)
        self.found.extend(self._restarts.decisions(self._node.ended))
        return self.found

    # Rounds of eviction

    def _rounds(self, until: int | None) -> None:
        """Play the rounds before a row; rounds in which nothing can happen are skipped together."""
        runs = self._node.signals
        while self._run < len(runs):
            places = self._places[self._run]
            end = len(places) if until is None else bisect_left(places, until, self._at)
            while self._at < end:
                if self._is_quiet():
                    matters = self._matters[self._run]
                    following = bisect_left(matters, self._at)
                    self._at = min(matters[following] if following < len(matters) else end, end)
                if self._at < end:
                    self._round(runs[self._run], self._at)
                    self._at += 1
            if self._at < len(places):
                return
            self._run, self._at = self._run + 1, 0

    def _is_quiet(self) -> bool:
        if self._more or self._added or self._gone or self._spared:
            return False
        return self._pending is None and self._own.quiet and self._next.quiet

    def _round(self, run: Run, at: int) -> None:
        self._settle_pending("")
        when = float(run.at[at])
        self._add_more(when)
        own = self._own.look(run, at, {})
        coming = own if self._next is self._own else self._next.look(run, at, self._freed())
        self._due = coming.act_on
        if self._due and not own.act_on:
            # The agent did nothing in this round, so nothing was measured for it.
            self._evict(when, self._due[0], list(self._admission.pods), self._last_use(self._due[0]))
            self._settle_pending("")

    def _evict(self, when: float, threshold: Threshold, uids: Sequence[str], used: Mapping[str, int]) -> None:
        """Choose the pod that is evicted; who ends it is known with the agent's own decision."""
        pods = [self._pods[uid] for uid in uids if uid in self._pods and uid not in self._gone]
        first = next(eviction_order(pods, used, threshold.signal), None)
        if first is not None:
            pod, amount = first
            use = "its use is not known" if amount is None else f"it used {amount}"
            why = f"{threshold.signal} below {threshold.value}; {use}"
            self._pending = Replayed(when, "eviction", pod.uid, pod.full_name, EVICTED, why)
            self.found.append(self._pending)

    def _settle_pending(self, recorded: str) -> None:
        """End the pod that the replay evicts; if the agent evicted the same, the record tells its end."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.uid != recorded:
            self._end(pending.uid, pending.at)

    def _end(self, uid: str, at: float) -> None:
        self._restarts.leave(uid, at)
        if self._spared.pop(uid, None) is None:
            self._gone.add(uid)
        self._added = [pod for pod in self._added if pod.uid != uid]
        self._admission.remove(uid)

    def _last_use(self, threshold: Threshold) -> dict[str, int]:
        """Return what pods used last of what a threshold starves, also those that only the replay has."""
        field = _FIELD_OF[CONDITION_OF[threshold.signal]]
        used = self._used(field)
        used |= {uid: amounts[field] for uid, amounts in self._spared.items() if field in amounts}
        return used | {pod.uid: _requested(pod) for pod in self._added if field == "memory"}

    def _used(self, field: str) -> dict[str, int]:
        """Return the last recorded use of all pods before the round that is played."""
        place = self._place()
        for run in reversed(self._node.use):
            at = int(run.place.searchsorted(place)) - 1
            if at >= 0:
                return run.amounts(at, field)
        return {}

    def _place(self) -> int:
        runs = self._node.signals
        return int(runs[self._run].place[self._at]) if self._run < len(runs) else 2**62

    def _freed(self) -> Freed:
        if not (self._gone or self._spared or self._added):
            return {}
        freed = {}
        for condition, field in _FIELD_OF.items():
            used = self._used(field) if self._gone else {}
            freed[condition] = sum(used.get(uid, 0) for uid in self._gone) - sum(
                amounts.get(field, 0) for amounts in self._spared.values()
            )
        freed[MEMORY_PRESSURE] -= sum(map(_requested, self._added))
        return freed

    # Rows

    def _row(self, place: int, row: RecordRow) -> None:
        if row.stream == "node" and row.name in BEGINNINGS:
            self._configure(row)
        elif row.stream == "node":
            self._admission.set_node(_decoded(row.inputs["node"], Node))
        elif row.stream == "pod":
            self._pod(place, row)
        elif row.stream == "pressure":
            self._pressure(row)
        elif row.stream == "restart":
            self._restarts.measure(row)
        elif row.stream == "images":
            self._images_run(row)
        else:
            self._decision(row)

    def _configure(self, row: RecordRow) -> None:
        """Begin with an agent's start, which remembers nothing, or with what it remembered later."""
        document = row.inputs["kubelet"]
        own = _decoded(document, KubeletConfiguration)
        keep_zeros(own, document)
        kubengine = _decoded(row.inputs["kubengine"], KubengineConfiguration)
        self._own = self._next = PressureReplay(own)
        if self._given is not None:
            self._next = PressureReplay(self._given)
        self._admission = AdmissionReplay(kubengine.preemption, lambda node: self._amounts(own, node))
        matters = [
            [replay.rounds_that_matter(run) for run in self._node.signals]
            for replay in (self._own, self._next)
        ]
        self._matters: list[list[int]] = [np.union1d(*both).tolist() for both in zip(*matters, strict=True)]
        self._restarts.configure(own, row.time, row.inputs.get("restarts", {}))
        self._images = None
        if repeats_images(kubengine.images):
            policy = ImageGCPolicy.from_config(self._given or own, kubengine.images)
            self._images = ImageReplay(policy, self._collected)
        self._due, self._pending = (), None
        self._pods.clear()
        self._gone.clear()
        self._spared.clear()
        if row.name == "state":
            self._recall(row.inputs)

    def _recall(self, remembered: Mapping[str, Any]) -> None:
        """Restore the pods and the pressure that the agent remembered. Those that are added are there
        already, and the other configuration has seen the same pressure.
        """
        admission = remembered["admission"]
        self._admission.set_node(_decoded(admission["node"], Node))
        pods, leaving, arriving = (
            _decoded(documents, list[Pod])
            for documents in (admission["pods"], admission["leaving"], remembered["arriving"])
        )
        for pod in (*pods, *leaving):
            self._admission.add(pod)
        for pod in leaving:
            self._admission.leave(pod.uid)
        self._leaving = {pod.uid for pod in leaving}
        self._pods |= {pod.uid: pod for pod in (*pods, *leaving, *arriving)}
        for pressure in (self._own, self._next):
            pressure.recall(remembered["pressure"])

    def _amounts(self, own: KubeletConfiguration, node: Node) -> Mapping[str, Quantity]:
        if self._given is None:
            return node.allocatable
        capacity = self._capacity(own, node)
        computed = [allocatable(one, capacity, settings_of(one, capacity, 2)) for one in (own, self._given)]
        return changed(node.allocatable, *computed)

    def _capacity(self, own: KubeletConfiguration, node: Node) -> dict[str, Quantity]:
        """Return what the machine has: from the signals, and for CPUs from what is left and reserved."""
        capacity = {}
        for run in self._node.signals[:1]:
            for name, signal in ((MEMORY, MEMORY_AVAILABLE), (EPHEMERAL_STORAGE, NODEFS_AVAILABLE)):
                if signal in run.keys and name in node.allocatable:
                    capacity[name] = Quantity.from_value(int(run.capacity[0, run.keys.index(signal)]))
        cpus = node.allocatable.get(CPU, ZERO)
        for reserved in (own.kube_reserved, own.system_reserved):
            cpus += Quantity.parse((reserved or {}).get(CPU, "0"))
        return capacity | {CPU: cpus}

    def _pod(self, place: int, row: RecordRow) -> None:
        uid = row.uid
        if "pod" in row.inputs:
            self._pods[uid] = _decoded(row.inputs["pod"], Pod)
        match row.name:
            case "added":
                if uid not in self._gone:
                    self._admission.add(self._pods[uid])
            case "arrives":
                if place not in self._judged:
                    self._refused_unjudged(row)
            case "judged":
                self._judge(row)
            case "stays":
                self._admission.stay(uid)
            case _ if uid in self._spared:
                self._keep(uid, row)
            case "leaves":
                self._admission.leave(uid)
            case "removed":
                self._restarts.leave(uid, row.time)
                self._gone.discard(uid)
                self._admission.remove(uid)

    def _judge(self, row: RecordRow) -> None:
        self._add_more(row.time)
        if row.uid in self._admission.pods:
            return
        pod = self._pods[row.uid]
        verdict = self._admission.judge(pod, self._next.conditions)
        outcome = ADMITTED if verdict.reason == ADMITTED else REFUSED
        why = "" if outcome == ADMITTED else f"{verdict.reason}: {verdict.message}"
        self.found.append(Replayed(row.time, "admission", pod.uid, pod.full_name, outcome, why))
        if outcome == REFUSED:
            self._restarts.leave(pod.uid, row.time)
        for uid in verdict.victims:
            victim = self._admission.find(uid)
            assert victim is not None
            why = f"for {pod.full_name}"
            self.found.append(Replayed(row.time, "preemption", uid, victim.full_name, PREEMPTED, why))
            if uid not in self._preempted:
                self._end(uid, row.time)

    def _refused_unjudged(self, row: RecordRow) -> None:
        """Handle a pod that the agent refused before it asked whether the pod fits."""
        if self._own.conditions:
            self._judge(row)

    def _add_more(self, when: float) -> None:
        """Let the additional pods arrive, as soon as the node is known."""
        if not self._admission.begun:
            return
        pods, self._more = self._more, []
        for pod in pods:
            self._pods[pod.uid] = pod
            self._judge(RecordRow(time=when, stream="pod", name="judged", uid=pod.uid))
        self._added = [pod for pod in self._added if pod.uid in self._admission.pods]

    def _keep(self, uid: str, row: RecordRow) -> None:
        """Let a pod go on that ends only in the record, with what it used last."""
        if row.name == "removed":
            fields = _FIELD_OF.values()
            self._spared[uid] = {field: self._used(field).get(uid, 0) for field in fields}

    def _pressure(self, row: RecordRow) -> None:
        if row.name == "relieved":
            self._due = ()
        elif row.name == "recovered" and self._pending is not None:
            self.found.remove(self._pending)
            self._pending = None
        elif row.name.startswith(_RANKING) and self._due:
            threshold, uids = self._due[0], row.text.split()
            if threshold.signal == row.name.removeprefix(_RANKING):
                used = {uid: amount for uid, amount in zip(uids, row.values, strict=True) if amount >= 0}
                used = {**self._last_use(threshold), **used} if self._spared or self._added else used
            else:
                used = self._last_use(threshold)
            own = (*self._spared, *(pod.uid for pod in self._added))
            self._evict(row.time, threshold, [*uids, *(uid for uid in own if uid not in uids)], used)

    def _images_run(self, row: RecordRow) -> None:
        if self._images is None:
            return
        try:
            run = measured_run(row.name, row.text, row.values, row.inputs)
        except ValueError as error:
            raise InvalidInput(f"not a recorded collection of images: {error}", subject="record") from None
        self.found.extend(self._images.play(run))

    def _decision(self, row: RecordRow) -> None:
        if row.name == f"{RESTART} restarted":
            self._restarts.restarted(row)
        elif row.name == f"{IMAGES} {COLLECTED}" and self._images is None:
            self.found.append(recorded_collection(row, self._collected))
        elif row.name == f"eviction {EVICTED}":
            if "available" not in row.inputs:
                # For its own use of the disk, whatever the configuration says about the node.
                self.found.append(Replayed(row.time, "eviction", row.uid, row.pod, EVICTED, row.text))
                return
            same = self._pending is not None and self._pending.uid == row.uid
            self._settle_pending(row.uid)
            if not same:
                self._spare(row.uid)
        elif row.name == _PREEMPTION:
            ours = any(one.uid == row.uid and one.outcome == PREEMPTED for one in reversed(self.found))
            if not ours and row.uid not in self._leaving:
                self._spare(row.uid)

    def _spare(self, uid: str) -> None:
        if uid not in self._gone:
            self._spared[uid] = {}


def _decoded(document: object, kind: type[Decoded]) -> Decoded:
    """Decode what an agent encoded, which has its defaults already. Raise `InvalidInput`."""
    try:
        return msgspec.convert(document, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"not a recorded {kind.__name__}: {error}", subject="record") from None


def _requested(pod: Pod) -> int:
    return pod_requests(pod).get(MEMORY, ZERO).value


def _judged_arrivals(node: NodeRecording) -> set[int]:
    """Return the places of the arrivals after which the agent asked whether the pod fits."""
    found: set[int] = set()
    last: dict[str, int] = {}
    for place, row in node.rows:
        if row.stream == "pod" and row.name == "arrives":
            last[row.uid] = place
        elif row.stream == "pod" and row.name == "judged" and row.uid in last:
            found.add(last[row.uid])
    return found
