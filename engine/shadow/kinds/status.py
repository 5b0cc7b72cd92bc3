"""Compare the status of pods that the kubelet shows with the one that follows from their spec and the
runtime.

Some inputs come from the kubelet's status: results of probes, the reason why it ended a pod, and the reason
why a container waits that the runtime does not have yet.
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
"""Seconds. On a busy node, the kubelet shows the end of a container half a minute later."""
CRASH_LOOP: Final = "CrashLoopBackOff"
CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


class _JudgedPod(NamedTuple):
    """Hold the findings about a pod, and the inputs that they were computed from."""

    pod: Pod
    record: PodRecord
    findings: Sequence[Finding]


class StatusComparer:
    """Compare the status of every pod. The findings about a pod are cached until the pod or its runtime
    record changes.
    """

    def __init__(self) -> None:
        self._judged: dict[str, _JudgedPod] = {}

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about all pods of an observation."""
        judged: dict[str, _JudgedPod] = {}
        for uid, pod in seen.pods.items():
            record, known = seen.record(uid), self._judged.get(uid)
            if known is None or known.pod is not pod or known.record != record:
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
        # While the runtime starts a container, the kubelet does not update the status of the pod.
        yield NotJudged("status", pod.full_name, "a container of it is being started")
        return
    ours = pod_status(pod, record, _inputs(pod, record, shown, seen.at))
    runtime, reason = f"runtime: {_runtime_text(record)}", _reason(pod.status)
    yield Comparison("status", pod.full_name, _of_pod(ours), _of_pod(pod.status), runtime, reason, SETTLE)
    computed = statuses(ours)
    for name, status in shown.items():
        if name in computed:
            yield Comparison(
                "status", f"{pod.full_name}/{name}", _of_container(computed[name]), _of_container(status),
                runtime, reason, SETTLE,
            )  # fmt: skip


def statuses(status: PodStatus) -> dict[str, ContainerStatus]:
    """Return the container statuses by name, init containers first."""
    listed = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return {one.name: one for one in listed}


def _inputs(pod: Pod, record: PodRecord, shown: dict[str, ContainerStatus], at: float) -> StatusInputs:
    """Return the inputs of a status that come from the kubelet; `at` is a Unix time."""
    status = pod.status
    by_name = {container.name: container for container in pod.all_containers}
    waiting = {
        name: found
        for name, container in by_name.items()
        if (found := _waiting(pod, container, record.container(name), shown.get(name))) is not None
    }
    ended = status.phase == "Failed" and bool(status.reason)

    def probed(running: ContainerRecord, probe: str) -> bool:
        """Return the result of a probe from the kubelet's status; True for a container without this probe."""
        status = shown.get(running.name)
        container = by_name.get(running.name)
        # The status may still be that of the container before.
        if container is None or status is None or status.container_id.rpartition("/")[2] != running.id:
            return False
        if getattr(container, probe) is None:
            return True
        return status.ready if probe == "readiness_probe" else bool(status.started)

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
    pod: Pod, container: Container, newest: ContainerRecord | None, status: ContainerStatus | None
) -> Waiting | None:
    """Return the reason why a container waits, None if it does not."""
    waiting = status.state.waiting if status is not None else None
    if newest is None:
        return Waiting(waiting.reason, waiting.message) if waiting is not None else None
    # From its end to the next sync, a container is shown as terminated. After that, its restart waits.
    if newest.state == EXITED and waiting is not None and should_restart(pod, container, newest.exit_code):
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


def _runtime_text(record: PodRecord) -> str:
    """Describe the containers and the sandbox of a pod in the runtime."""
    newest = {container.name: container for container in reversed(record.containers)}
    parts = [
        f"{name} attempt {c.attempt} " + ("runs" if c.running else f"exited with {c.exit_code}")
        for name, c in newest.items()
    ]
    sandbox = record.sandbox
    return "; ".join([*parts, "sandbox ready" if sandbox is not None and sandbox.ready else "no sandbox"])


def _reason(status: PodStatus) -> str:
    """Return the reasons in a status: that of the pod, and those of its conditions that are not true."""
    reasons = [
        f"{condition.type}: {condition.reason} {condition.message}".rstrip()
        for condition in status.conditions or ()
        if condition.status != "True" and condition.reason
    ]
    of_pod = f"{status.reason}: {status.message}" if status.reason else ""
    return "; ".join(part for part in (of_pod, *reasons) if part) or "as /pods shows it"
