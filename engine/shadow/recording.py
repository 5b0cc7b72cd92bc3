"""Convert observations into rows of a record: observations, decisions, and changes of pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from engine.api.pod import Pod
from engine.api.status import ContainerStatus
from engine.api.timestamps import rfc3339
from engine.cri.records import EXITED, PodRecord
from engine.node.sync.actions import policy_of
from engine.record.blocks import RecordRow
from engine.shadow.kinds.admission import PREEMPTED, is_rejected
from engine.shadow.kinds.comparison import Comparison, Finding
from engine.shadow.kinds.eviction import EVICTED
from engine.shadow.kinds.observation import Observation
from engine.shadow.kinds.status import statuses
from engine.shadow.observation_rows import ObservationEncoder, RecordedObservation

JUDGED: Final = "judged"
"""The stream of rows about compared decisions: their name is the kind, and their text is our decision."""
Compared = dict[tuple[str, str], Comparison]
"""The comparisons of an observation by kind and subject."""


class ObservationRecorder:
    """Compare each observation with the one before, and yield rows for the changes."""

    def __init__(self) -> None:
        self._encoder = ObservationEncoder()
        self._judged: dict[tuple[str, str], tuple[str, str]] = {}
        self._shown: dict[str, tuple[str, str, str]] = {}
        self._names: dict[str, str] = {}
        self._newest: dict[tuple[str, str], str] = {}
        self._first = True

    def rows(
        self, recorded: RecordedObservation, findings: Iterable[Finding], number: int, *, state: bool = False
    ) -> Iterator[RecordRow]:
        """Yield the rows of one observation with number `number`. The last row completes it; with `state`, it
        holds everything.
        """
        seen = recorded.seen
        compared: Compared = {(one.kind, one.subject): one for one in findings if isinstance(one, Comparison)}
        yield from self._pods(seen, compared)
        yield from self._restarts(seen, compared)
        yield from self._comparisons(seen, compared)
        yield from self._encoder.rows(recorded, number, state=state)
        self._first = False

    def _comparisons(self, seen: Observation, compared: Compared) -> Iterator[RecordRow]:
        """Yield a row for each comparison in which either side changed since the observation before."""
        judged = {key: (one.ours, one.kubelets) for key, one in compared.items()}
        for key, sides in judged.items():
            if self._judged.get(key) != sides:
                one = compared[key]
                inputs = {"subject": one.subject, "kubelet": one.kubelets, "reason": one.our_reason}
                inputs["kubeletsReason"] = one.kubelets_reason
                yield RecordRow(
                    time=seen.at, stream=JUDGED, name=one.kind, text=one.ours, pod=_pod_of(one), inputs=inputs
                )
        self._judged = judged

    def _pods(self, seen: Observation, compared: Compared) -> Iterator[RecordRow]:
        """Yield a row for each pod whose status changed, for the decision that it shows, and for pods that
        are gone.
        """
        shown = {uid: _status_of(pod) for uid, pod in seen.pods.items()}
        for uid, pod in seen.pods.items():
            if self._shown.get(uid) == shown[uid]:
                continue
            phase, reason, message = shown[uid]
            text = f"{reason}: {message}" if reason else message
            yield _row(
                seen, pod, "pod", phase, text, {"spec": _requests(pod)} if uid not in self._shown else {}
            )
            decision = _decision(pod)
            if decision:
                yield _row(seen, pod, "decision", decision, text, _decision_inputs(compared, decision, pod))
        for uid in (uid for uid in self._shown if uid not in shown):
            phase, reason, message = self._shown[uid]
            last = f"last seen {phase} {reason}".rstrip()
            yield RecordRow(time=seen.at, stream="pod", name="gone", text=last, uid=uid, pod=self._names[uid])
        self._shown = shown
        self._names = {uid: pod.full_name for uid, pod in seen.pods.items()}

    def _restarts(self, seen: Observation, compared: Compared) -> Iterator[RecordRow]:
        """Yield a row for each container that has replaced another one since the observation before."""
        newest: dict[tuple[str, str], str] = {}
        for uid, pod in seen.pods.items():
            record, shown = seen.record(uid), statuses(pod.status)
            for container in pod.all_containers:
                last = record.container(container.name)
                if last is None:
                    continue
                key = uid, container.name
                newest[key] = last.id
                if not self._first and self._newest.get(key) not in (None, last.id):
                    yield _restarted(seen, pod, record, container.name, shown.get(container.name), compared)
        self._newest = newest


def _restarted(
    seen: Observation, pod: Pod, record: PodRecord, name: str, status: ContainerStatus | None,
    compared: Compared,
) -> RecordRow:  # fmt: skip
    """Return the row of a restart, with the end of the previous container."""
    before = record.previous(name)
    container = next(one for one in pod.all_containers if one.name == name)
    inputs: dict[str, Any] = {"restartPolicy": policy_of(pod, container)}
    text = "its previous container is gone"
    if before is not None and before.state == EXITED:
        text = f"{before.reason or 'it ended'} with exit code {before.exit_code}"
        inputs |= {
            "attempt": before.attempt,
            "startedAt": rfc3339(before.started_at),
            "finishedAt": rfc3339(before.finished_at),
        }
        if before.message:
            inputs["message"] = before.message
        found = compared.get(("restart", f"{pod.full_name}/{name} attempt {before.attempt}"))
        if found is not None:
            inputs["byTheseRules"] = f"{found.ours} ({found.our_reason})"
    if status is not None:
        inputs["restartCount"] = status.restart_count
    return _row(seen, pod, "decision", "restart restarted", text, inputs, container=name)


def _decision(pod: Pod) -> str:
    """Return the decision of the kubelet that the status of a pod shows, "" for none."""
    reason = pod.status.reason
    if is_rejected(pod):
        return "admission refused"
    return {EVICTED: "eviction evicted", PREEMPTED: "preemption preempted"}.get(reason, "")


def _decision_inputs(compared: Compared, decision: str, pod: Pod) -> dict[str, Any]:
    """Return the inputs of a kubelet's decision: requests of the pod, and our decision with its reason."""
    kind = decision.partition(" ")[0]
    found = compared.get((kind, pod.full_name))
    inputs: dict[str, Any] = {"requests": _requests(pod)}
    if found is not None:
        inputs |= {"byTheseRules": found.ours, "reason": found.our_reason}
    if kind == "preemption":
        inputs["for"] = [one.subject for one in compared.values() if one.kind == "preemption"]
    return inputs


def _requests(pod: Pod) -> dict[str, str]:
    """Return the requests of each container as text."""
    return {
        container.name: " ".join(f"{name}={amount}" for name, amount in container.requests.items())
        or "nothing"
        for container in pod.all_containers
    }


def _status_of(pod: Pod) -> tuple[str, str, str]:
    status = pod.status
    return status.phase, status.reason, status.message


def _pod_of(one: Comparison) -> str:
    """Return the full name of the pod of a comparison, "" for none: a subject begins with the pod's name, or
    is a cgroup path or `node`.
    """
    namespace, _, name = one.subject.partition(" ")[0].partition("/")
    name = name.partition("/")[0]
    return f"{namespace}/{name}" if namespace and name else ""


def _row(
    seen: Observation, pod: Pod, stream: str, name: str, text: str, inputs: dict[str, Any], *,
    container: str = "",
) -> RecordRow:  # fmt: skip
    return RecordRow(
        time=seen.at,
        stream=stream,
        name=name,
        text=text,
        pod=pod.full_name,
        uid=pod.uid,
        container=container,
        inputs=inputs,
    )
