"""Compare admission and preemption: would these rules have taken the pod, and which pods would end for it?

The order in which pods arrived is that of their start times. At the first observation, pods are judged in
this order against those before them. Later, a new pod is judged against the pods that were there before it;
pods that ended between two observations count if only their use explains what the kubelet did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from engine.admission import NodeAllocations, Verdict, decide
from engine.admission.failures import NODE_AFFINITY, NODE_NAME, TAINT, is_of_predicates
from engine.admission.readmission import ADMITTED
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import SEEN_ANNOTATION
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import ENDED, Observation

PREEMPTED: Final = "Preempting"
SETTLE: Final = 60.0
_REJECTED: Final = "Pod was rejected: "
"""How the message of a pod begins that a kubelet does not admit."""
_BY_LABELS: Final = (NODE_AFFINITY.reason, NODE_NAME.reason, TAINT.reason)


def is_refused(pod: Pod) -> bool:
    """Tell whether the kubelet did not admit the pod: it failed without ever having a container."""
    status = pod.status
    return status.phase == "Failed" and bool(status.reason) and not status.container_statuses


def is_rejected(pod: Pod) -> bool:
    """Tell whether the kubelet did not admit the pod, also one that ran under the kubelet before this one."""
    return is_refused(pod) or pod.status.message.startswith(_REJECTED)


def is_decided(pod: Pod) -> bool:
    """Tell whether the kubelet has admitted or refused the pod: it lists pods before it does so."""
    return pod.status.start_time is not None or is_refused(pod)


class AdmissionComparer:
    """Judge each pod once the kubelet has decided about it, and again if it refuses the pod later, as after a
    restart. Remembers the findings, and the pods of the last observation.
    """

    def __init__(self) -> None:
        self._judged: dict[str, list[Finding]] = {}
        self._refused: set[str] = set()
        self._before: dict[str, Pod] | None = None

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about all pods of an observation."""
        refused = {uid for uid, pod in seen.pods.items() if is_refused(pod)}
        late = refused - self._refused
        self._judged = {
            uid: found for uid, found in self._judged.items() if uid in seen.pods and uid not in late
        }
        self._refused = refused
        decided = [pod for pod in seen.pods.values() if is_decided(pod)]
        new = sorted((pod for pod in decided if pod.uid not in self._judged), key=arrival)
        if new:
            self._judge(new, seen)
        self._before = {pod.uid: pod for pod in seen.active() if is_decided(pod)}
        for found in self._judged.values():
            yield from found

    def _judge(self, new: Sequence[Pod], seen: Observation) -> None:
        first = self._before is None
        before = self._before or {}
        arriving = {pod.uid for pod in new}
        there = [pod for pod in seen.active() if is_decided(pod) and pod.uid not in arriving]
        # A victim has ended by the time at which its preemptor is seen.
        victims = [pod for uid, pod in seen.pods.items() if pod.status.reason == PREEMPTED and uid in before]
        known = arriving | {pod.uid for pod in (*there, *victims)}
        gone = [pod for uid, pod in before.items() if uid not in known]
        admitted = NodeAllocations(seen.node)
        for pod in (*there, *victims):
            _add(admitted, pod)
        for pod in new:
            if pod.status.phase in ENDED and not is_refused(pod):
                why = "ended before the first observation" if first else "ended before it was seen"
                self._judged[pod.uid] = [NotJudged("admission", pod.full_name, why)]
                continue
            self._judged[pod.uid] = list(self._judged_pod(pod, admitted, gone, victims, seen))

    def _judged_pod(
        self, pod: Pod, admitted: NodeAllocations, gone: Sequence[Pod], victims: Sequence[Pod],
        seen: Observation,
    ) -> Iterator[Finding]:  # fmt: skip
        refused = is_refused(pod)
        theirs = pod.status.reason if refused else ADMITTED
        message = pod.status.message if refused else "runs, or waits for its containers"
        if refused and not is_of_predicates(theirs, message):
            yield NotJudged("admission", pod.full_name, f"refused by another part of the kubelet: {theirs}")
            return
        try:
            verdict = decide(admitted, pod)
        except InvalidInput as error:
            yield NotJudged("admission", pod.full_name, str(error))
            return
        if verdict.reason in _BY_LABELS and not seen.node_known:
            yield NotJudged("admission", pod.full_name, "the node's labels and taints are not known")
            _add(admitted, pod, unless=refused)
            return
        earlier = _with_more(admitted, gone, pod, verdict)
        if refused and verdict.admit:
            verdict = earlier
        ours = ADMITTED if verdict.admit else verdict.reason
        # A kubelet that starts shows pods as they were before it decides about them.
        settle = 0.0 if refused or pod.status.phase == "Running" else SETTLE
        yield Comparison("admission", pod.full_name, ours, theirs, _reason(verdict), message, settle)
        _add(admitted, pod, unless=refused)
        if not refused:
            yield from _preemption(pod, admitted, (verdict, earlier), gone, victims)


def _preemption(
    pod: Pod, admitted: NodeAllocations, verdicts: Sequence[Verdict], gone: Sequence[Pod],
    victims: Sequence[Pod],
) -> Iterator[Finding]:  # fmt: skip
    """Judge which pods ended for a critical one. Afterwards the pods are those that the kubelet left.

    A victim whose containers exit with 0 has no reason, as a pod that ended by itself; and a kubelet waits
    for its victims one after another, so that others may end meanwhile.
    """
    ended = sorted(victim.full_name for victim in victims if victim.uid in admitted)
    names = {one.uid: one.full_name for one in (*admitted.pods.values(), *victims)}
    left = {one.uid for one in gone}
    choices = [
        (sorted(names[uid] for uid in verdict.victims if uid not in left), verdict)
        for verdict in verdicts
        if verdict.preemption is not None
    ]
    if not choices or (verdicts[0].preemption is None and not ended):
        return
    chosen, verdict = next((one for one in choices if one[0] == ended), choices[0])
    why = _why_these(verdict, names | {one.uid: one.full_name for one in gone})
    for uid in {*verdict.victims, *(victim.uid for victim in victims)}:
        admitted.remove(uid)
    yield Comparison(
        "preemption", pod.full_name, ", ".join(chosen) or "none", ", ".join(ended) or "none",
        why, "pods that the kubelet ended for a critical pod since the last observation",
    )  # fmt: skip


def arrival(pod: Pod) -> tuple[str, str, str]:
    """Return the key by which pods are in the order of their arrival on the node."""
    begun = pod.status.start_time or pod.metadata.creation_timestamp
    return (
        begun.isoformat() if begun is not None else "",
        pod.annotations.get(SEEN_ANNOTATION, ""),
        pod.full_name,
    )


def _add(admitted: NodeAllocations, pod: Pod, *, unless: bool = False) -> None:
    if not unless and pod.uid not in admitted:
        try:
            admitted.add(pod)
        except InvalidInput:
            return


def _with_more(admitted: NodeAllocations, gone: Iterable[Pod], pod: Pod, verdict: Verdict) -> Verdict:
    """Judge again as if pods that ended since the last observation had still been there."""
    added = [other.uid for other in gone if other.uid not in admitted]
    for other in gone:
        _add(admitted, other)
    try:
        return decide(admitted, pod)
    except InvalidInput:
        return verdict
    finally:
        for uid in added:
            admitted.remove(uid)


def _reason(verdict: Verdict) -> str:
    if not verdict.admit:
        return verdict.message
    if verdict.preemption is not None:
        short = ", ".join(f"{amount} of {name}" for name, amount in verdict.preemption.requirements)
        return f"fits once {len(verdict.victims)} pods have ended: {short} must be freed"
    return "every predicate holds"


def _why_these(verdict: Verdict, names: dict[str, str]) -> str:
    assert verdict.preemption is not None
    return "; ".join(
        f"{names.get(step.uid, step.uid)} ({step.qos}) frees "
        + ", ".join(f"{amount} of {name}" for name, amount in step.frees)
        for step in verdict.preemption.steps()
    )
