"""A pod's status as the kubelet reports it, from its spec and what the runtime holds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from engine.api.pod import Container, Pod
from engine.api.qos import qos_class
from engine.api.status import (
    IP,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodCondition,
    PodStatus,
    ResourceAmounts,
)
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord

PENDING, RUNNING_PHASE, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container is not running, as the worker last met it."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class StatusInputs:
    """All that a status depends on beside the spec and the runtime's record.

    `ready` and `started` answer for a running container; `ended` is the reason and message of a pod
    that the node itself failed (rejected, evicted, past its deadline); times are Unix seconds.
    """

    now: float
    runtime_name: str
    host_ip: str
    ready: Callable[[ContainerRecord], bool]
    started: Callable[[ContainerRecord], bool]
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    ended: tuple[str, str] | None = None
    rejected: bool = False
    disruption: tuple[str, str] | None = None
    start_time: float | None = None
    terminated: bool = False
    resources: Callable[[ContainerRecord], ResourceAmounts | None] = lambda _: None
    message: Callable[[ContainerRecord], str] = lambda record: record.message
    extra_conditions: tuple[PodCondition, ...] = ()


def pod_status(pod: Pod, record: PodRecord, inputs: StatusInputs) -> PodStatus:
    """The whole status; transition times are kept from `pod.status` where a condition stays. A pod that was
    `rejected` has no more than the reason."""
    if inputs.rejected and inputs.ended is not None:
        reason, message = inputs.ended
        return PodStatus(
            phase=FAILED,
            reason=reason,
            message=message,
            start_time=_time(inputs.start_time or 0),
            qos_class=qos_class(pod),
        )
    init = [_container_status(pod, c, record, inputs, is_init=True) for c in pod.init_containers]
    main = [_container_status(pod, c, record, inputs, is_init=False) for c in pod.spec.containers]
    status = PodStatus(
        phase=_phase(pod, init, main, inputs),
        host_ip=inputs.host_ip,
        host_ips=[IP(ip=inputs.host_ip)] if inputs.host_ip else None,
        start_time=_time(inputs.start_time or 0),
        init_container_statuses=init or None,
        container_statuses=main or None,
        qos_class=qos_class(pod),
    )
    if inputs.ended is not None:
        status.phase = FAILED
        status.reason, status.message = inputs.ended
    _addresses(pod, record, status)
    status.conditions = _conditions(pod, record, status, init, main, inputs)
    return status


def _phase(pod: Pod, init: list[ContainerStatus], main: list[ContainerStatus], inputs: StatusInputs) -> str:
    policy = pod.spec.restart_policy
    pending = False
    for container, status in zip(pod.init_containers, init, strict=True):
        ended = _ended(status)
        if container.is_sidecar:
            pending |= not status.started and status.restart_count == 0 and not ended
        elif not ended:
            pending = True
        elif ended.exit_code != 0:
            if policy == "Never":
                return FAILED
            pending = True
    ended_states = [_ended(s) for s in main]
    running = sum(s.state.running is not None for s in main)
    if any(s.state.waiting and not s.last_state.terminated for s in main):
        pending = True
    if pending and not inputs.terminated:
        return PENDING
    if running:
        return RUNNING_PHASE
    if not all(ended_states):
        return FAILED if inputs.terminated else PENDING
    succeeded = all(ended is not None and ended.exit_code == 0 for ended in ended_states)
    if inputs.terminated or policy != "Always":
        if succeeded:
            return SUCCEEDED
        return FAILED if inputs.terminated or policy == "Never" else RUNNING_PHASE
    return RUNNING_PHASE


def _ended(status: ContainerStatus) -> ContainerStateTerminated | None:
    """How the container ended, if it is not running: now, or before it began to wait."""
    if status.state.waiting is not None:
        return status.last_state.terminated
    return status.state.terminated


def _container_status(
    pod: Pod, container: Container, record: PodRecord, inputs: StatusInputs, *, is_init: bool
) -> ContainerStatus:
    newest = record.container(container.name)
    previous = record.previous(container.name)
    waiting = inputs.waiting.get(container.name)
    status = ContainerStatus(
        name=container.name,
        ready=False,
        restart_count=0,
        image=container.image,
        image_id="",
        started=False,
    )
    if newest is None:
        reason = "PodInitializing" if pod.init_containers and not is_init else "ContainerCreating"
        chosen = waiting or Waiting(reason)
        status.state.waiting = ContainerStateWaiting(reason=chosen.reason, message=chosen.message)
        return status
    status.restart_count = newest.attempt
    status.image = newest.image or container.image
    status.image_id = newest.image_id
    status.container_id = f"{inputs.runtime_name}://{newest.id}"
    status.resources = inputs.resources(newest)
    ended = _terminated(newest, inputs)
    if newest.state == RUNNING:
        status.state.running = ContainerStateRunning(started_at=_time(newest.started_at))
        status.started = inputs.started(newest)
        status.ready = status.started and inputs.ready(newest) and (not is_init or container.is_sidecar)
    elif newest.state == EXITED and waiting is not None:
        status.state.waiting = ContainerStateWaiting(reason=waiting.reason, message=waiting.message)
        status.last_state.terminated = ended
        return status
    elif newest.state == EXITED:
        status.state.terminated = ended
        status.ready = is_init and not container.is_sidecar and newest.exit_code == 0
    else:
        chosen = waiting or Waiting("ContainerCreating")
        status.state.waiting = ContainerStateWaiting(reason=chosen.reason, message=chosen.message)
    if previous is not None and previous.state == EXITED:
        status.last_state = ContainerState(terminated=_terminated(previous, inputs))
    return status


def _terminated(record: ContainerRecord, inputs: StatusInputs) -> ContainerStateTerminated:
    return ContainerStateTerminated(
        exit_code=record.exit_code,
        reason=record.reason,
        message=inputs.message(record),
        started_at=_time(record.started_at),
        finished_at=_time(record.finished_at),
        container_id=f"{inputs.runtime_name}://{record.id}",
    )


def _addresses(pod: Pod, record: PodRecord, status: PodStatus) -> None:
    sandbox = record.sandbox
    ips: tuple[str, ...]
    if pod.spec.host_network:
        ips = (status.host_ip,) if status.host_ip else ()
    else:
        ips = sandbox.ips if sandbox is not None else ()
    if ips:
        status.pod_ip = ips[0]
        status.pod_ips = [IP(ip=ip) for ip in ips]


def _conditions(
    pod: Pod,
    record: PodRecord,
    status: PodStatus,
    init: list[ContainerStatus],
    main: list[ContainerStatus],
    inputs: StatusInputs,
) -> list[PodCondition]:
    done = status.phase in (SUCCEEDED, FAILED)
    incomplete = [
        s.name
        for c, s in zip(pod.init_containers, init, strict=True)
        if not (s.started if c.is_sidecar else s.ready)
    ]
    sidecars = [s for c, s in zip(pod.init_containers, init, strict=True) if c.is_sidecar]
    unready = [s.name for s in (*sidecars, *main) if not s.ready]
    sandbox = record.sandbox
    network = sandbox is not None and sandbox.ready and not done
    conditions = [
        PodCondition(type="PodReadyToStartContainers", status=_boolean(network)),
        _all_of("Initialized", "ContainersNotInitialized", "incomplete", incomplete, status.phase),
        _all_of("Ready", "ContainersNotReady", "unready", unready, status.phase),
        _all_of("ContainersReady", "ContainersNotReady", "unready", unready, status.phase),
        PodCondition(type="PodScheduled", status="True"),
        *inputs.extra_conditions,
    ]
    if inputs.disruption is not None:
        reason, message = inputs.disruption
        conditions.append(
            PodCondition(type="DisruptionTarget", status="True", reason=reason, message=message)
        )
    known = {condition.type: condition for condition in pod.status.conditions or []}
    now = _time(inputs.now)
    for condition in conditions:
        before = known.get(condition.type)
        same = before is not None and before.status == condition.status
        condition.last_transition_time = before.last_transition_time if before is not None and same else now
    return conditions


def _all_of(kind: str, reason: str, adjective: str, missing: list[str], phase: str) -> PodCondition:
    if phase == SUCCEEDED:
        done = kind == "Initialized"
        return PodCondition(type=kind, status=_boolean(done), reason="PodCompleted")
    if phase == FAILED and kind != "Initialized":
        return PodCondition(type=kind, status="False", reason="PodFailed")
    if not missing:
        return PodCondition(type=kind, status="True")
    names = " ".join(missing)
    text = f"containers with {adjective} status: [{names}]"
    return PodCondition(type=kind, status="False", reason=reason, message=text)


def _boolean(value: bool) -> str:
    return "True" if value else "False"


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds > 0 else None
