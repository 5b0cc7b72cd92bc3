"""Compare admission and preemption: is a pod admitted, and which pods are preempted for it?

Pods arrive in the order of their start times. At the first observation, each pod is judged against the pods
that arrived before it. Later, a new pod is judged against the pods of the observation before. Pods that ended
between two observations count if only their requests explain what the kubelet did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from engine.admission import NodeAllocations, Verdict, decide
from engine.admission.failures import NODE_AFFINITY, NODE_NAME, TAINT, is_of_predicates
from engine.admission.readmission import ADMITTED
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import SEEN_ANNOTATION, qos_class
from engine.api.resources import pod_requests
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import ENDED, Observation

PREEMPTED: Final = "Preempting"
SETTLE: Final = 60.0
PERHAPS: Final = "pods that ended since the last observation may have been its victims, and show no reason"
UNSEEN: Final = "pods that the kubelet may have admitted before it came and went between two observations"
_REJECTED: Final = "Pod was rejected: "
"""The beginning of the message of a pod that a kubelet rejects."""
_BY_LABELS: Final = (NODE_AFFINITY.reason, NODE_NAME.reason, TAINT.reason)


def is_refused(pod: Pod) -> bool:
    """Return whether the kubelet rejected the pod: it failed without ever having a container."""
    status = pod.status
    return status.phase == "Failed" and bool(status.reason) and not status.container_statuses


def is_rejected(pod: Pod) -> bool:
    """Return whether the kubelet rejected the pod, perhaps after it ran: a kubelet that restarts may reject a
    running pod.
    """
    return is_refused(pod) or pod.status.message.startswith(_REJECTED)


def is_decided(pod: Pod) -> bool:
    """Return whether the kubelet has admitted or rejected the pod. It lists pods before it decides."""
    return pod.status.start_time is not None or is_refused(pod)


class _Choice(NamedTuple):
    """Hold a verdict, its victims, and a description of what each of them frees."""

    verdict: Verdict
    victims: Sequence[Pod] = ()
    why: str = ""


class AdmissionComparer:
    """Compare admission of each pod once, when the kubelet has decided, and again if it rejects the pod
    later, as after a restart. It holds the findings about all pods, and the pods of the last observation.
    """

    def __init__(self) -> None:
        self._judged: dict[str, list[Finding]] = {}
        self._refused: set[str] = set()
        self._before: dict[str, Pod] | None = None
        self._undecided: set[str] = set()

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
        self._undecided = {uid for uid, pod in seen.pods.items() if not is_decided(pod)}
        for found in self._judged.values():
            yield from found

    def _judge(self, new: Sequence[Pod], seen: Observation) -> None:
        """Set the findings about new pods, each against the pods before it and the earlier new ones."""
        first = self._before is None
        before = self._before or {}
        arriving = {pod.uid for pod in new}
        present = [pod for pod in seen.active() if is_decided(pod) and pod.uid not in arriving]
        # When its preemptor is observed, a victim has ended already. It still counts against the preemptor.
        victims = [pod for uid, pod in seen.pods.items() if pod.status.reason == PREEMPTED and uid in before]
        accounted = arriving | {pod.uid for pod in (*present, *victims)}
        gone = [pod for uid, pod in before.items() if uid not in accounted]
        admitted = NodeAllocations(seen.node)
        for pod in (*present, *victims):
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
        """Yield the findings about one pod, and add it to `admitted` if the kubelet admitted it."""
        refused = is_refused(pod)
        theirs = pod.status.reason if refused else ADMITTED
        message = pod.status.message if refused else "runs, or waits for its containers"
        if refused and not is_of_predicates(theirs, message):
            yield NotJudged("admission", pod.full_name, f"refused by another part of the kubelet: {theirs}")
            return
        try:
            choice = _choose(admitted, pod)
        except InvalidInput as error:
            yield NotJudged("admission", pod.full_name, str(error))
            return
        verdict = choice.verdict
        if verdict.reason in _BY_LABELS and not seen.node_known:
            yield NotJudged("admission", pod.full_name, "the node's labels and taints are not known")
            _add(admitted, pod, unless=refused)
            return
        earlier = _with_gone_pods(admitted, gone, pod, choice)
        # The kubelet may have decided before pods ended that were gone at this observation.
        if refused and verdict.admit:
            verdict = earlier.verdict
            if verdict.admit and self._undecided - seen.pods.keys():
                yield NotJudged("admission", pod.full_name, UNSEEN)
                return
        ours = ADMITTED if verdict.admit else verdict.reason
        # A kubelet that starts shows the old status of pods until it has decided about them.
        settle = 0.0 if refused or pod.status.phase == "Running" else SETTLE
        yield Comparison("admission", pod.full_name, ours, theirs, _reason(verdict), message, settle)
        _add(admitted, pod, unless=refused)
        if not refused:
            yield from _preemption(pod, admitted, (choice, earlier), gone, victims)


def _preemption(
    pod: Pod, admitted: NodeAllocations, choices: Sequence[_Choice], gone: Sequence[Pod],
    victims: Sequence[Pod],
) -> Iterator[Finding]:  # fmt: skip
    """Compare the victims of a critical pod, and remove those of the kubelet from `admitted`.

    `choices` are our decisions without and with the pods that are `gone`, whose end the kubelet may not have
    seen.
    """
    ended = [victim for victim in victims if victim.uid in admitted]
    preempting = [choice for choice in choices if choice.verdict.preemption is not None]
    if not preempting:
        return
    if choices[0].verdict.preemption is None and not ended:
        yield NotJudged("preemption", pod.full_name, PERHAPS)
        return
    agreed = next((one for one in preempting if _is_possible(one.victims, ended, gone)), None)
    uids = {one.uid for one in gone}
    chosen = ended if agreed is not None else [one for one in preempting[0].victims if one.uid not in uids]
    for victim in victims:
        admitted.remove(victim.uid)
    yield Comparison(
        "preemption", pod.full_name, _names(chosen), _names(ended), (agreed or preempting[0]).why,
        "pods that the kubelet ended for a critical pod since the last observation",
    )  # fmt: skip


def _is_possible(victims: Iterable[Pod], ended: Iterable[Pod], gone: Iterable[Pod]) -> bool:
    """Return whether the kubelet may have chosen `victims`: the preempted pods that ended, and perhaps some
    of those that are gone.

    A victim whose containers exit with 0 shows no reason, like a pod that ended by itself. A kubelet ends its
    victims one after another, so that other pods may end meanwhile. Its list of pods has no order, so it
    chooses any of several pods with equal requests.
    """
    chosen, certain, perhaps = (Counter(map(_equivalence, pods)) for pods in (victims, ended, gone))
    return all(certain[key] <= chosen[key] <= certain[key] + perhaps[key] for key in chosen | certain)


def _equivalence(pod: Pod) -> tuple[object, ...]:
    """Return a key that is equal for pods between which a preemption does not distinguish."""
    return qos_class(pod), *sorted((name, str(amount)) for name, amount in pod_requests(pod).items())


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(sorted(pod.full_name for pod in pods)) or "none"


def arrival(pod: Pod) -> tuple[str, str, str]:
    """Return a key that sorts pods by their arrival on the node."""
    begun = pod.status.start_time or pod.metadata.creation_timestamp
    return (
        begun.isoformat() if begun is not None else "",
        pod.annotations.get(SEEN_ANNOTATION, ""),
        pod.full_name,
    )


def _add(admitted: NodeAllocations, pod: Pod, *, unless: bool = False) -> None:
    """Add a pod, if its amounts can be counted."""
    if not unless and pod.uid not in admitted:
        try:
            admitted.add(pod)
        except InvalidInput:
            return


def _choose(admitted: NodeAllocations, pod: Pod) -> _Choice:
    """Return our decision about a pod. Raise `InvalidInput` for amounts that cannot be counted."""
    verdict = decide(admitted, pod)
    if verdict.preemption is None:
        return _Choice(verdict)
    pods = admitted.pods
    why = "; ".join(
        f"{pods[step.uid].full_name} ({step.qos}) frees "
        + (", ".join(f"{amount} of {name}" for name, amount in step.frees) or "nothing more")
        for step in verdict.preemption.steps()
    )
    return _Choice(verdict, [pods[uid] for uid in verdict.victims], why)


def _with_gone_pods(admitted: NodeAllocations, gone: Iterable[Pod], pod: Pod, otherwise: _Choice) -> _Choice:
    """Return our decision as if the pods that ended since the last observation still ran; `otherwise` if
    their amounts cannot be counted.
    """
    added = [other.uid for other in gone if other.uid not in admitted]
    for other in gone:
        _add(admitted, other)
    try:
        return _choose(admitted, pod)
    except InvalidInput:
        return otherwise
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
