"""Computes a pod's status as the kubelet reports it, from its spec and the runtime's record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec

from engine.api.lifecycle import PodEnd
from engine.api.pod import Container, Pod, VolumeMount
from engine.api.qos import is_static, qos_class
from engine.api.resources import pod_limits, pod_requests
from engine.api.status import (
    IP,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    ImageVolumeStatus,
    LinuxContainerUser,
    PodCondition,
    PodStatus,
    ResourceAmounts,
    VolumeMountStatus,
    VolumeStatus,
    is_own_condition,
    lost_end,
)
from engine.api.timestamps import whole_second
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord
from engine.node.nodeinfo.addresses import pod_ips
from engine.node.pod.life import Waiting
from engine.node.spec.cri_config import absolute_path, stop_signal_name
from engine.node.sync.actions import could_restart_all, has_initialized, pod_restarts, should_restart
from engine.node.sync.ephemeral_containers import known_begun

RESTARTING_ALL = "RestartingAllContainers"
RESTARTING_ALL_TEXT = "The container is removed because RestartAllContainers in place"
PENDING, RUNNING_PHASE, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


class StatusInputs(msgspec.Struct):
    """Hold the inputs of a status besides the spec and the runtime's record.

    `ready` and `started` answer for a running container. `end` is the reason why the node ends the pod
    (rejected, evicted, past its deadline). `reset` are the restart counts of containers that were removed so
    that the pod starts again, `restarting` the ids of containers that were stopped to start again. `devices`
    are a container's devices by resource, with their health; `claimed` are those of its claims, as the status
    shows them. `stop_signals` and `image_volumes` tell whether the status shows those. Times are Unix
    seconds.
    """

    now: float
    runtime_name: str
    host_ips: tuple[str, ...]
    ready: Callable[[ContainerRecord], bool]
    started: Callable[[ContainerRecord], bool]
    waiting: Mapping[str, Waiting] = msgspec.field(default_factory=dict)
    waiting_reason: Waiting | None = None
    end: PodEnd | None = None
    start_time: float | None = None
    terminated: bool = False
    resources: Callable[[ContainerRecord], ResourceAmounts | None] = lambda _: None
    devices: Callable[[str], Mapping[str, Mapping[str, bool]]] = lambda _: {}
    claimed: Callable[[str], Sequence[dict[str, Any]]] = lambda _: ()
    message: Callable[[ContainerRecord], str] = lambda record: record.message
    extra_conditions: tuple[PodCondition, ...] = ()
    recursive_read_only: bool = False
    reset: Mapping[str, int] = msgspec.field(default_factory=dict)
    restarting: Collection[str] = ()
    stop_signals: bool = False
    image_volumes: bool = False


by_name = attrgetter("name")
MESSAGES_OF_A_POD: Final = 12 * 1024
"""Bytes that the termination messages of a pod's containers share."""


def _bound_messages(pod: Pod, status: PodStatus) -> None:
    """Cut each termination message to its share, so that a status object stays small."""
    share = MESSAGES_OF_A_POD // max(len(pod.every_container), 1)
    for statuses in (
        status.container_statuses,
        status.init_container_statuses,
        status.ephemeral_container_statuses,
    ):
        for shown in statuses or ():
            for state in (shown.state, shown.last_state):
                ended = state.terminated
                # A character has up to 4 bytes in UTF-8, so a shorter message fits without being encoded.
                if ended is not None and len(ended.message) > share // 4:
                    ended.message = ended.message.encode()[:share].decode(errors="ignore")


def pod_status(pod: Pod, record: PodRecord, inputs: StatusInputs) -> PodStatus:
    """Compute the whole status.

    Statuses of containers are sorted by name, those of init containers stay in the order of the spec.
    Transition times of unchanged conditions and the conditions of other owners are taken from `pod.status`.
    The status of a `rejected` pod has only the reason.
    """
    end = inputs.end
    if end is not None and end.rejected:
        return PodStatus(
            phase=FAILED,
            reason=end.reason,
            message=end.message,
            start_time=_time(inputs.start_time or 0),
            qos_class=qos_class(pod),
            resource_claim_statuses=pod.status.resource_claim_statuses,
            extended_resource_claim_status=pod.status.extended_resource_claim_status,
        )
    init = [_container_status(pod, c, record, inputs, is_init=True) for c in pod.spec.init_containers or ()]
    main = [_container_status(pod, c, record, inputs, is_init=False) for c in pod.spec.containers]
    for shown in main:
        held = [*_devices(inputs.devices(shown.name)), *inputs.claimed(shown.name)]
        shown.allocated_resources_status = held or None
    status = PodStatus(
        phase=_phase(pod, record, init, main, inputs),
        host_ip=inputs.host_ips[0],
        host_ips=[IP(ip=ip) for ip in inputs.host_ips],
        start_time=_time(inputs.start_time or 0),
        init_container_statuses=init or None,
        container_statuses=sorted(main, key=by_name) or None,
        ephemeral_container_statuses=sorted(_ephemeral_statuses(pod, record, inputs), key=by_name)
        if pod.spec.ephemeral_containers
        else None,
        qos_class=qos_class(pod),
        resource_claim_statuses=pod.status.resource_claim_statuses,
        extended_resource_claim_status=pod.status.extended_resource_claim_status,
    )
    _bound_messages(pod, status)
    requests, limits = pod_requests(pod) or None, pod_limits(pod) or None
    if len(pod.spec.containers) == 1:
        # The objects of the spec where they say the same, because the status is kept as long as the pod.
        (only,) = pod.spec.containers
        requests = only.requests if only.requests == requests else requests
        limits = only.limits if only.limits == limits else limits
    status.allocated_resources = requests
    status.resources = ResourceAmounts(requests=requests, limits=limits)
    if inputs.waiting_reason is not None:
        status.reason, status.message = inputs.waiting_reason.reason, inputs.waiting_reason.message
    well = inputs.terminated and status.phase == SUCCEEDED and not _would_restart(pod, main)
    if end is not None and not (end.by_exit_codes and well):
        status.phase, status.reason, status.message = FAILED, end.reason, end.message
    ips = pod_ips(pod, record.sandbox.ips if record.sandbox is not None else (), inputs.host_ips)
    if ips:
        status.pod_ip, status.pod_ips = ips[0], [IP(ip=ip) for ip in ips]
    status.conditions = _conditions(pod, record, status, init, main, inputs)
    return status


def _ephemeral_statuses(pod: Pod, record: PodRecord, inputs: StatusInputs) -> list[ContainerStatus]:
    """Compute the statuses of ephemeral containers: never ready; one that the runtime has lost is shown as
    ended.
    """
    statuses = []
    for container in pod.ephemeral_containers:
        known = known_begun(pod, container)
        if known is not None and record.container(container.name) is None:
            statuses.append(_lost(known))
            continue
        status = _container_status(pod, container, record, inputs, is_init=False)
        status.ready, status.started = False, None
        statuses.append(status)
    return statuses


def _lost(status: ContainerStatus) -> ContainerStatus:
    ended = status.state.terminated or status.last_state.terminated or lost_end()
    return msgspec.structs.replace(status, state=ContainerState(terminated=ended))


def with_others(status: PodStatus, server: PodStatus) -> PodStatus:
    """Return the node's status with the conditions and claim names that other clients wrote to the API."""
    own = [c for c in status.conditions or () if is_own_condition(c.type)]
    others = [c for c in server.conditions or () if not is_own_condition(c.type)]
    return msgspec.structs.replace(
        status,
        conditions=[*others, *own] or None,
        resource_claim_statuses=server.resource_claim_statuses,
        extended_resource_claim_status=server.extended_resource_claim_status,
    )


def _phase(
    pod: Pod,
    record: PodRecord,
    init: list[ContainerStatus],
    main: list[ContainerStatus],
    inputs: StatusInputs,
) -> str:
    terminated = inputs.terminated
    pending = waiting = running = False
    for container, status in zip(pod.spec.init_containers or (), init, strict=True):
        ended = _ended(status)
        if container.is_sidecar:
            running |= status.state.running is not None
            if ended is None:
                pending |= not (status.started or has_initialized(pod, record))
                waiting |= status.state.waiting is not None
        elif ended is None:
            pending = True
        elif ended.exit_code != 0 and not _runs_again(pod, container, ended):
            return FAILED
    ends = [_ended(status) for status in main]
    if not terminated:
        waiting |= any(s.state.waiting is not None and end is None for s, end in zip(main, ends, strict=True))
        if pending or waiting:
            return PENDING
        if running or not all(ends):
            return RUNNING_PHASE
    restarts = any(
        end is not None
        and (_runs_again(pod, container, end) or end.container_id.rpartition("/")[2] in inputs.restarting)
        for container, end in zip(pod.spec.containers, ends, strict=True)
    )
    if restarts and not terminated:
        return RUNNING_PHASE
    return SUCCEEDED if all(end is not None and end.exit_code == 0 for end in ends) else FAILED


def _would_restart(pod: Pod, main: list[ContainerStatus]) -> bool:
    """Tell whether this is a static pod with a container that the node would restart."""
    ends = [(container, _ended(status)) for container, status in zip(pod.spec.containers, main, strict=True)]
    return is_static(pod) and any(end and _runs_again(pod, container, end) for container, end in ends)


def _runs_again(pod: Pod, container: Container, ended: ContainerStateTerminated) -> bool:
    return should_restart(pod, container, ended.exit_code) or ended.reason == RESTARTING_ALL


def _ended(status: ContainerStatus) -> ContainerStateTerminated | None:
    """Return how the container ended if it is not running: now, or before it began to wait."""
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
    status.volume_mounts = _volume_mounts(container, inputs.recursive_read_only)
    reset = inputs.reset.get(container.name)
    if newest is None and reset is not None:
        status.restart_count = reset
        status.last_state.terminated = _reset_end()
        status.state.waiting = (waiting or Waiting(RESTARTING_ALL, RESTARTING_ALL_TEXT)).state()
        return status
    if newest is None:
        why = waiting.state() if waiting is not None else None
        past = is_init and not container.is_sidecar and has_initialized(pod, record)
        return status_of_unseen(pod, status, why, past=past)
    status.restart_count = newest.attempt
    status.image = newest.image or container.image
    status.image_id = newest.image_id
    status.container_id = f"{inputs.runtime_name}://{newest.id}"
    requests, limits = container.requests or None, container.limits or None
    status.resources = inputs.resources(newest) or ResourceAmounts(requests=requests, limits=limits)
    status.allocated_resources = requests
    if newest.user is not None:
        uid, gid, *groups = newest.user
        status.user = ContainerUser(
            linux=LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups or None)
        )
    if inputs.stop_signals:
        status.stop_signal = stop_signal_name(newest.stop_signal)
    if inputs.image_volumes:
        _show_images(status.volume_mounts or [], newest)
    ended = _terminated(newest, inputs)
    if newest.state == RUNNING:
        status.state.running = ContainerStateRunning(started_at=_time(newest.started_at))
        # A container is ready only once its startup probe has succeeded (KEP-950).
        status.started = inputs.started(newest)
        status.ready = status.started and inputs.ready(newest) and (not is_init or container.is_sidecar)
    elif newest.state == EXITED and waiting is not None:
        status.state.waiting = waiting.state()
        status.last_state.terminated = ended
        return status
    elif newest.state == EXITED:
        status.state.terminated = ended
        status.ready = is_init and not container.is_sidecar and newest.exit_code == 0
    else:
        status.state.waiting = (waiting or Waiting("")).state()
    if reset is not None:
        status.last_state.terminated = _reset_end()
    if previous is not None and previous.state == EXITED:
        status.last_state = ContainerState(terminated=_terminated(previous, inputs))
    elif previous is None and status.last_state.terminated is None:
        # Only the newest dead container is kept; how the one before ended stands only in the last status.
        status.last_state.terminated = known_last_end(pod, container.name, status.container_id)
    return status


def _devices(held: Mapping[str, Mapping[str, bool]]) -> list[dict[str, Any]]:
    return [
        {
            "name": resource,
            "resources": [
                {"resourceID": device, "health": "Healthy" if healthy else "Unhealthy"}
                for device, healthy in devices.items()
            ],
        }
        for resource, devices in held.items()
    ]


def _volume_mounts(container: Container, recursive: bool) -> list[VolumeMountStatus] | None:
    return [
        VolumeMountStatus(
            name=mount.name,
            mount_path=mount.mount_path,
            read_only=mount.read_only,
            recursive_read_only=("Enabled" if is_recursive_read_only(mount, recursive) else "Disabled")
            if mount.read_only
            else None,
        )
        for mount in container.volume_mounts or []
    ] or None


def _show_images(mounts: Iterable[VolumeMountStatus], record: ContainerRecord) -> None:
    """Add the runtime's image to each mount of an image volume."""
    images = dict(record.image_volumes)
    for mount in mounts:
        image = images.get(absolute_path(mount.mount_path))
        if image:
            mount.volume_status = VolumeStatus(image=ImageVolumeStatus(image_ref=image))


def is_recursive_read_only(mount: VolumeMount, supported: bool) -> bool:
    """Tell whether mounts below this one are read-only too, as far as the runtime supports it."""
    return supported and mount.recursive_read_only in ("Enabled", "IfPossible")


def _reset_end() -> ContainerStateTerminated:
    """Return how a container ended that was removed so that its pod starts again."""
    return ContainerStateTerminated(exit_code=137, reason=RESTARTING_ALL, message=RESTARTING_ALL_TEXT)


def _terminated(record: ContainerRecord, inputs: StatusInputs) -> ContainerStateTerminated:
    return ContainerStateTerminated(
        exit_code=record.exit_code,
        reason=record.reason,
        message=inputs.message(record),
        started_at=_time(record.started_at),
        finished_at=_time(record.finished_at),
        container_id=f"{inputs.runtime_name}://{record.id}",
    )


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
        for c, s in zip(pod.spec.init_containers or (), init, strict=True)
        if not (s.started if c.is_sidecar else s.ready)
    ]
    sidecars = [s for c, s in zip(pod.spec.init_containers or (), init, strict=True) if c.is_sidecar]
    unready = [s.name for s in (*sidecars, *main) if not s.ready]
    sandbox = record.sandbox
    network = sandbox is not None and sandbox.ready and not done
    resizes = [msgspec.structs.replace(condition) for condition in inputs.extra_conditions]
    conditions = [
        *resizes,
        *_disruption(inputs.end),
        PodCondition(type="PodReadyToStartContainers", status=_boolean(network)),
        _initialized(pod, main, incomplete, status.phase),
        _gated(pod, _all_of("Ready", "ContainersNotReady", "unready", unready, status.phase)),
        _all_of("ContainersReady", "ContainersNotReady", "unready", unready, status.phase),
        PodCondition(type="PodScheduled", status="True"),
    ]
    if could_restart_all(pod):
        conditions.append(_all_restarting(pod, record, inputs, status.phase))
    known = {condition.type: condition for condition in pod.status.conditions or []}
    own = {condition.type for condition in conditions}
    others = [c for c in known.values() if not is_own_condition(c.type) and c.type not in own]
    now = _time(inputs.now)
    for condition in conditions:
        before = known.get(condition.type)
        same = before is not None and before.status == condition.status
        condition.last_transition_time = before.last_transition_time if before is not None and same else now
    for resize in resizes:
        _resize_times(resize, known.get(resize.type), now)
    return [*others, *conditions]


def _resize_times(condition: PodCondition, before: PodCondition | None, now: datetime | None) -> None:
    """Return transition and probe time of the resize condition.

    The first changes with the reason, the second with any change.
    """
    if before is None or before.reason != condition.reason:
        condition.last_transition_time = condition.last_probe_time = now
    else:
        condition.last_transition_time = before.last_transition_time
        condition.last_probe_time = before.last_probe_time if before.message == condition.message else now


def _disruption(end: PodEnd | None) -> list[PodCondition]:
    if end is None or not end.condition_reason:
        return []
    text = end.condition_message or end.message
    return [PodCondition(type="DisruptionTarget", status="True", reason=end.condition_reason, message=text)]


def _initialized(pod: Pod, main: list[ContainerStatus], incomplete: list[str], phase: str) -> PodCondition:
    """Tell whether the pod is initialized: true for good once a regular container has started."""
    started = any(status.state.running or status.state.terminated for status in main)
    was = any(c.type == "Initialized" and c.status == "True" for c in pod.status.conditions or [])
    missing = [] if started or was else incomplete
    return _all_of("Initialized", "ContainersNotInitialized", "incomplete", missing, phase)


def _gated(pod: Pod, ready: PodCondition) -> PodCondition:
    """Apply readiness gates to the Ready condition; only clients of the API set them."""
    if ready.status != "True":
        return ready
    known = {condition.type: condition.status for condition in pod.status.conditions or []}
    wrong = [
        f'the status of pod readiness gate "{gate.condition_type}" is not "True", but '
        f"{known[gate.condition_type]}"
        if gate.condition_type in known
        else f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.'
        for gate in pod.spec.readiness_gates or []
        if known.get(gate.condition_type) != "True"
    ]
    if not wrong:
        return ready
    return PodCondition(
        type=ready.type, status="False", reason="ReadinessGatesNotReady", message=", ".join(wrong)
    )


def _all_restarting(pod: Pod, record: PodRecord, inputs: StatusInputs, phase: str) -> PodCondition:
    kind = "AllContainersRestarting"
    if phase in (SUCCEEDED, FAILED):
        return PodCondition(
            type=kind, status="False", reason="Pod" + ("Completed" if phase == SUCCEEDED else phase)
        )
    if not pod_restarts(pod, record):
        return PodCondition(type=kind, status="False")
    text = "container exited with restart policy rule"
    return PodCondition(type=kind, status="True", reason="RestartAllContainersStarted", message=text)


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
    return whole_second(seconds) if seconds > 0 else None


_INITIALIZED = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)


def status_of_unseen(
    pod: Pod, blank: ContainerStatus, why: ContainerStateWaiting | None, *, past: bool
) -> ContainerStatus:
    """Fill in `blank` from the status of the container in `pod.status`.

    `why` is the reason why it has not started, if the node tried. `past` is true if the pod has reached the
    containers after it, so that it will not be started again.
    """
    known = _known(pod, blank.name) or blank
    ended = known.state.terminated
    if ended is not None and why is None:
        return known
    blank.restart_count = known.restart_count
    blank.last_state = ContainerState(terminated=ended) if ended is not None else known.last_state
    if why is None and past:
        blank.state = ContainerState(terminated=_treated_as_done())
        blank.ready = True
        return blank
    if why is None and known.state.running is not None:
        if blank.last_state.terminated is None:
            blank.last_state = ContainerState(terminated=lost_end())
        if pod.metadata.deletion_timestamp is None:
            blank.restart_count += 1
    not_yet = "PodInitializing" if pod.spec.init_containers else "ContainerCreating"
    blank.state = ContainerState(waiting=why or ContainerStateWaiting(reason=not_yet))
    return blank


def known_last_end(pod: Pod, name: str, container_id: str) -> ContainerStateTerminated | None:
    """Return how the container before `container_id` ended, as `pod.status` says; None if it says nothing.

    The runtime may not hold that container any longer: only the newest dead ones are kept.
    """
    known = _known(pod, name)
    if known is None:
        return None
    for ended in (known.state.terminated, known.last_state.terminated):
        if ended is not None and ended.container_id != container_id:
            return ended
    return None


def _known(pod: Pod, name: str) -> ContainerStatus | None:
    status = pod.status
    all_known = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    known: ContainerStatus | None = next((each for each in all_known if each.name == name), None)
    return known and msgspec.structs.replace(known)


def _treated_as_done() -> ContainerStateTerminated:
    return ContainerStateTerminated(exit_code=0, reason="Completed", message=_INITIALIZED)
