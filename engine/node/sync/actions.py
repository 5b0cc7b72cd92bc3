"""Computes what to do next for a pod; the pure core of the pod worker.

`compute_pod_actions` compares the spec of a pod with what the runtime holds, and returns which sandbox to
create, which containers to kill and which to start now. The worker carries this out, reads the runtime again
and asks again. While the pod has to wait (for an init container, a back-off, a startup probe), the answer
contains nothing to do.

Rules: kubelet v1.32 with sidecar containers (KEP-753), and restart rules and ephemeral containers of v1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from engine.api.pod import Container, ContainerRestartRule, Pod
from engine.cri.records import CREATED, EXITED, UNKNOWN, ContainerRecord, PodRecord
from engine.node.sync.ephemeral_containers import ephemeral_containers_to_start

RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"
UNKNOWN_TEXT = '{} is in "unknown" state, try killing it before restart'


def matching_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """Return the first rule that matches the exit code."""
    for rule in container.restart_policy_rules or []:
        codes = rule.exit_codes
        if codes is None or codes.operator not in ("In", "NotIn"):
            continue
        if (exit_code in (codes.values or [])) == (codes.operator == "In"):
            return rule
    return None


def policy_of(pod: Pod, container: Container) -> str:
    """Return the container's own restart policy, or the pod's."""
    return container.restart_policy or pod.spec.restart_policy or "Always"


def should_restart(pod: Pod, container: Container, exit_code: int) -> bool:
    """Decide by a matching rule, or else by the policy."""
    if container.restart_policy is not None:
        rule = matching_rule(container, exit_code)
        if rule is not None and rule.action in (RESTART, RESTART_ALL):
            return True
    policy = policy_of(pod, container)
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def has_initialized(pod: Pod, record: PodRecord) -> bool:
    """Tell whether ordinary init containers are done: a regular container has existed in this sandbox."""
    sandbox = record.sandbox
    names = {container.name for container in pod.spec.containers}
    return sandbox is not None and any(
        c.name in names and c.sandbox_id == sandbox.id for c in record.containers
    )


def restarts_all(container: Container, exited: ContainerRecord) -> bool:
    """Tell whether this exit of a container restarts all containers of the pod."""
    if exited.state != EXITED:
        return False
    rule = matching_rule(container, exited.exit_code)
    return rule is not None and rule.action == RESTART_ALL


def could_restart_all(pod: Pod) -> bool:
    """Tell whether any container has a rule that restarts all containers."""
    for container in pod.all_containers:
        for rule in container.restart_policy_rules or ():
            if rule.action == RESTART_ALL:
                return True
    return False


def pod_restarts(pod: Pod, record: PodRecord) -> bool:
    """Tell whether a container has exited so that all containers restart."""
    return could_restart_all(pod) and any(
        newest is not None and restarts_all(container, newest)
        for container in pod.all_containers
        for newest in [record.container(container.name)]
    )


def to_reset(pod: Pod, record: PodRecord) -> list[ContainerRecord]:
    """Return all containers of the pod in the order in which they are removed.

    Regular containers go before init containers. Containers whose exit triggered the restart go last, so
    that a restarted agent recognizes an unfinished reset and resumes it.
    """
    found = [*_records(pod.spec.containers, record), *_records(pod.init_containers, record)]
    victims = [copy for container, copy in found if not restarts_all(container, copy)]
    return [*victims, *(copy for container, copy in found if restarts_all(container, copy))]


def _records(containers: list[Container], record: PodRecord) -> Iterator[tuple[Container, ContainerRecord]]:
    for container in containers:
        for copy in record.containers:
            if copy.name == container.name:
                yield container, copy


Hash = Callable[[Container], str]


class ContainerHealth(msgspec.Struct, frozen=True):
    """Hold the results of a running container's probes; `failed` names the probe that asks for a restart."""

    started: bool = True
    failed: str = ""


HealthOf = Callable[[ContainerRecord], ContainerHealth]


class Kill(msgspec.Struct, frozen=True):
    container: ContainerRecord
    reason: str
    message: str
    liveness: str = ""
    """`liveness` or `startup` if a probe asks for the kill: the grace period of that probe applies."""
    announces_restart: bool = False
    """Whether the event says that the container will be restarted, as a kubelet's of a regular container."""

    @property
    def event(self) -> str:
        return f"{self.message}, will be restarted" if self.announces_restart else self.message


class PodActions(msgspec.Struct):
    """Describe the next actions.

    `kill_pod`: stop everything in the old sandbox first. `reset`: stop and remove these containers in this
    order, because all containers start again. `finished`: nothing will run again.
    """

    kill_pod: bool = False
    create_sandbox: bool = False
    attempt: int = 0
    kill: list[Kill] = msgspec.field(default_factory=list)
    start: list[Container] = msgspec.field(default_factory=list)
    reset: list[ContainerRecord] = msgspec.field(default_factory=list)
    finished: bool = False

    @property
    def nothing(self) -> bool:
        return not (self.kill_pod or self.create_sandbox or self.kill or self.start or self.reset)


def compute_pod_actions(
    pod: Pod, record: PodRecord, *, health: HealthOf, spec_hash: Hash, restarting: Collection[str] = ()
) -> PodActions:
    """Compute the next actions for a pod that should run.

    `restarting` are the ids of containers that were stopped to start again, whatever their policy.
    """
    if pod_restarts(pod, record) and _any_ready(record):
        return PodActions(reset=to_reset(pod, record))
    if pod_is_finished(pod, record, restarting):
        return PodActions(kill_pod=bool(record.may_run or _any_ready(record)), finished=True)
    changed, attempt = _sandbox_changed(pod, record)
    if changed:
        return _recreate(pod, record, attempt)
    actions = PodActions()
    if pod.spec.ephemeral_containers:
        actions.start.extend(ephemeral_containers_to_start(pod, record))
    if not has_initialized(pod, record):
        if not _init_phase(pod, record, actions, health, spec_hash):
            return actions
    else:
        _keep_sidecars(pod, record, actions, health, spec_hash)
    _main_phase(pod, record, actions, health, spec_hash, restarting)
    return actions


def pod_is_finished(pod: Pod, record: PodRecord, restarting: Collection[str] = ()) -> bool:
    """Tell whether every container has ended for good, or an init container has failed for good."""
    if any(init_failed_for_good(pod, container, record) for container in pod.spec.init_containers or ()):
        return True
    for container in pod.spec.containers:
        newest = record.container(container.name)
        if newest is None or newest.state != EXITED or newest.id in restarting:
            return False
        if should_restart(pod, container, newest.exit_code):
            return False
    return True


def init_failed_for_good(pod: Pod, container: Container, record: PodRecord) -> bool:
    newest = record.container(container.name)
    return (
        not container.is_sidecar
        and newest is not None
        and newest.state == EXITED
        and newest.exit_code != 0
        and not should_restart(pod, container, newest.exit_code)
    )


def _any_ready(record: PodRecord) -> bool:
    return any(sandbox.ready for sandbox in record.sandboxes)


def _sandbox_changed(pod: Pod, record: PodRecord) -> tuple[bool, int]:
    """Tell whether a new sandbox is needed, and return its attempt number."""
    newest = record.sandbox
    if newest is None:
        return True, 0
    usable = (
        newest.ready
        # With two ready sandboxes the pod would run twice; both are stopped, and a new one starts.
        and sum(sandbox.ready for sandbox in record.sandboxes) == 1
        and newest.host_network == pod.spec.host_network
        and (pod.spec.host_network or bool(newest.ips))
    )
    return not usable, newest.attempt + 1 if not usable else newest.attempt


def _recreate(pod: Pod, record: PodRecord, attempt: int) -> PodActions:
    actions = PodActions(kill_pod=not record.empty, attempt=attempt)
    # A pod that never restarts gets no second sandbox once something of it has run.
    if pod.spec.restart_policy == "Never" and attempt != 0 and record.containers:
        actions.finished = True
        return actions
    wanted = [c for c in pod.spec.containers if not _has_run_once(pod, c, record)]
    if not wanted and any(record.container(c.name) is not None for c in pod.spec.containers):
        actions.finished = True
        return actions
    actions.create_sandbox = True
    if pod.spec.init_containers:
        actions.start = [pod.spec.init_containers[0]]
    else:
        actions.start = wanted
    return actions


def _has_run_once(pod: Pod, container: Container, record: PodRecord) -> bool:
    """Tell whether a container that must succeed once has succeeded."""
    newest = record.container(container.name)
    succeeded = newest is not None and newest.state == EXITED and newest.exit_code == 0
    return succeeded and policy_of(pod, container) == "OnFailure"


def _current(record: PodRecord, name: str) -> ContainerRecord | None:
    """Return the newest container of that name, if it belongs to the newest sandbox."""
    newest = record.container(name)
    if newest is None or record.sandbox is None or newest.sandbox_id != record.sandbox.id:
        return None
    return newest


def _init_phase(pod: Pod, record: PodRecord, actions: PodActions, health: HealthOf, spec_hash: Hash) -> bool:
    """Advance the init containers by one step; return true when the regular containers may start."""
    newest = [_current(record, container.name) for container in pod.spec.init_containers or ()]
    # Garbage collection may have removed ended init containers. If a later one exists, the earlier ones have
    # succeeded and do not run again.
    last = max((i for i, found in enumerate(newest) if found is not None), default=-1)
    for index, container in enumerate(pod.init_containers):
        found = newest[index]
        if container.is_sidecar:
            # Once a later one has started, this sidecar only has to be kept running: the pod does not wait
            # out its restarts.
            if not _advance_sidecar(container, found, actions, health, spec_hash) and index >= last:
                return False
        elif found is None or found.state == CREATED:
            if index >= last:
                actions.start.append(container)
                return False
        elif found.state == UNKNOWN:
            actions.kill.append(Kill(found, "ContainerUnknown", UNKNOWN_TEXT.format("Init container")))
            actions.start.append(container)
            return False
        elif found.running:
            return False
        elif found.exit_code != 0 and index >= last:
            actions.start.append(container)
            return False
    return True


def _advance_sidecar(
    container: Container,
    found: ContainerRecord | None,
    actions: PodActions,
    health: HealthOf,
    spec_hash: Hash,
) -> bool:
    """Keep a sidecar running; return true when the containers after it may start."""
    if found is None or found.state in (CREATED, EXITED):
        actions.start.append(container)
        return False
    kill = _reason_to_kill("Init container", container, found, health, spec_hash)
    if kill is not None:
        actions.kill.append(kill)
        actions.start.append(container)
        return False
    return health(found).started


def _keep_sidecars(
    pod: Pod, record: PodRecord, actions: PodActions, health: HealthOf, spec_hash: Hash
) -> None:
    for container in pod.spec.init_containers or ():
        if container.is_sidecar:
            _advance_sidecar(container, _current(record, container.name), actions, health, spec_hash)


def _main_phase(
    pod: Pod,
    record: PodRecord,
    actions: PodActions,
    health: HealthOf,
    spec_hash: Hash,
    restarting: Collection[str],
) -> None:
    for container in pod.spec.containers:
        found = record.container(container.name)
        if found is None or found.state == CREATED:
            actions.start.append(container)
        elif found.state == EXITED:
            if found.id in restarting or should_restart(pod, container, found.exit_code):
                actions.start.append(container)
        else:
            kill = _reason_to_kill("Container", container, found, health, spec_hash)
            if kill is not None:
                # A changed spec restarts the container under any policy, as in the kubelet.
                restarts = policy_of(pod, container) != "Never" or kill.reason == "ContainerSpecChanged"
                said = restarts and kill.reason != "ContainerUnknown"
                actions.kill.append(msgspec.structs.replace(kill, announces_restart=said))
                if restarts:
                    actions.start.append(container)


def _reason_to_kill(
    noun: str, container: Container, found: ContainerRecord, health: HealthOf, spec_hash: Hash
) -> Kill | None:
    """Return why a running container is to be stopped, or None; the event calls it by `noun`."""
    if found.state == UNKNOWN:
        return Kill(found, "ContainerUnknown", UNKNOWN_TEXT.format(noun))
    if found.hash and found.hash != spec_hash(container):
        return Kill(found, "ContainerSpecChanged", f"{noun} {container.name} definition changed")
    failed = health(found).failed
    if failed:
        text = f"{noun} {container.name} failed {failed} probe"
        return Kill(found, "Unhealthy", text, liveness=failed)
    return None
