"""Compare the status of pods: computed from spec and runtime, and as the kubelet shows it.

What only the kubelet knows is taken from it: results of probes, why it ended a pod, and why a container that
the runtime does not have yet waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from engine.api.lifecycle import PodEnd
from engine.api.pod import Container, Pod
from engine.api.status import ContainerState, ContainerStatus, PodStatus
from engine.cri.records import CREATED, EXITED, ContainerRecord, PodRecord
from engine.node.pod.life import Waiting
from engine.node.sync.actions import should_restart
from engine.node.sync.status import StatusInputs, pod_status
from engine.shadow.kinds.admission import is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import Observation

SETTLE: Final = 60.0
"""Seconds; on a busy node the kubelet shows the end of a container half a minute later."""
CRASH_LOOP: Final = "CrashLoopBackOff"
CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


class _JudgedPod(NamedTuple):
    """Hold the findings about a pod and what they follow from."""

    pod: Pod
    held: PodRecord
    findings: Sequence[Finding]


class StatusComparer:
    """Judge the status of every pod. As long as neither the pod nor what the runtime holds of it changes, its
    findings stay.
    """

    def __init__(self) -> None:
        self._judged: dict[str, _JudgedPod] = {}

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about all pods of an observation."""
        judged: dict[str, _JudgedPod] = {}
        for uid, pod in seen.pods.items():
            record, known = seen.record(uid), self._judged.get(uid)
            if known is None or known.pod is not pod or known.held != record:
                known = _JudgedPod(pod, record, tuple(compare_status(pod, seen)))
            judged[uid] = known
            yield from known.findings
        self._judged = judged


def compare_status(pod: Pod, seen: Observation) -> Iterator[Finding]:
    """Yield one comparison for the pod (phase and conditions), and one for each container."""
    record = seen.record(pod.uid)
    if is_refused(pod):
        return
    shown = statuses(pod.status)
    if record.empty or any(s.container_id and record.container(n) is None for n, s in shown.items()):
        yield NotJudged("status", pod.full_name, "the runtime no longer has its containers")
        return
    if pod.metadata.deletion_timestamp is not None:
        yield NotJudged("status", pod.full_name, "is being deleted")
        return
    if any(newest.state == CREATED for name in shown if (newest := record.container(name)) is not None):
        # The kubelet waits for the runtime, and shows nothing new of the pod until the container has started.
        yield NotJudged("status", pod.full_name, "a container of it is being started")
        return
    ours = pod_status(pod, record, _inputs(pod, record, shown, seen.at))
    runtime = f"runtime: {_said(record)}"
    yield Comparison(
        "status", pod.full_name, _of_pod(ours), _of_pod(pod.status), runtime, _why(pod.status), SETTLE
    )
    computed = statuses(ours)
    for name, status in shown.items():
        if name in computed:
            yield Comparison(
                "status", f"{pod.full_name}/{name}", _of_container(computed[name]), _of_container(status),
                runtime, _why(pod.status), SETTLE,
            )  # fmt: skip


def statuses(status: PodStatus) -> dict[str, ContainerStatus]:
    """Return the container statuses by name, init containers first."""
    listed = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return {one.name: one for one in listed}


def _inputs(pod: Pod, record: PodRecord, shown: dict[str, ContainerStatus], at: float) -> StatusInputs:
    status = pod.status
    by_name = {container.name: container for container in pod.all_containers}
    waiting = {
        name: found
        for name, container in by_name.items()
        if (found := _waiting(pod, container, record.container(name), shown.get(name))) is not None
    }
    ended = status.phase == "Failed" and bool(status.reason)

    def probed(running: ContainerRecord, probe: str) -> bool:
        """Take the result of a probe from the kubelet; a container without one has none to wait for."""
        told = shown.get(running.name)
        container = by_name.get(running.name)
        if container is None or told is None or told.container_id.rpartition("/")[2] != running.id:
            return False
        if getattr(container, probe) is None:
            return True
        return told.ready if probe == "readiness_probe" else bool(told.started)

    return StatusInputs(
        now=at,
        runtime_name="runtime",
        host_ips=(status.host_ip or "0.0.0.0",),
        ready=lambda running: probed(running, "readiness_probe"),
        started=lambda running: probed(running, "startup_probe"),
        waiting=waiting,
        end=PodEnd(reason=status.reason, message=status.message) if ended else None,
        start_time=status.start_time.timestamp() if status.start_time is not None else None,
        terminated=status.phase in ("Succeeded", "Failed"),
    )


def _waiting(
    pod: Pod, container: Container, newest: ContainerRecord | None, told: ContainerStatus | None
) -> Waiting | None:
    shown = told.state.waiting if told is not None else None
    if newest is None:
        return Waiting(shown.reason, shown.message) if shown is not None else None
    # Between its end and the next sync a container is shown as terminated; then its restart waits.
    if newest.state == EXITED and shown is not None and should_restart(pod, container, newest.exit_code):
        return Waiting(CRASH_LOOP)
    return None


def _of_pod(status: PodStatus) -> str:
    known = {condition.type: condition.status for condition in status.conditions or ()}
    conditions = " ".join(f"{name}={known[name]}" for name in CONDITIONS if name in known)
    return f"{status.phase} {conditions}".rstrip()


def _of_container(status: ContainerStatus) -> str:
    ready = "ready" if status.ready else "not ready"
    return f"{_of_state(status.state)}, {ready}, restarts {status.restart_count}"


def _of_state(state: ContainerState) -> str:
    if state.running is not None:
        return "running"
    if state.terminated is not None:
        return f"terminated with {state.terminated.exit_code} ({state.terminated.reason})"
    return f"waiting ({state.waiting.reason})" if state.waiting is not None else "unknown"


def _said(record: PodRecord) -> str:
    """Describe what the runtime has of a pod."""
    newest = {container.name: container for container in reversed(record.containers)}
    parts = [
        f"{name} attempt {c.attempt} " + ("runs" if c.running else f"exited with {c.exit_code}")
        for name, c in newest.items()
    ]
    sandbox = record.sandbox
    return "; ".join([*parts, "sandbox ready" if sandbox is not None and sandbox.ready else "no sandbox"])


def _why(status: PodStatus) -> str:
    reasons = [
        f"{condition.type}: {condition.reason} {condition.message}".rstrip()
        for condition in status.conditions or ()
        if condition.status != "True" and condition.reason
    ]
    said = f"{status.reason}: {status.message}" if status.reason else ""
    return "; ".join(part for part in (said, *reasons) if part) or "as /pods shows it"
