"""Decides whether an exited container runs again: its restart rules, its own policy, the pod's policy. Pure.

Source: kubelet v1.36 (`podutil.ContainerShouldRestart`, KEP-5307, KEP-5532).
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import Container, ContainerRestartRule, Pod
from engine.cri.records import EXITED, ContainerRecord, PodRecord

RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"


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
    return any(
        rule.action == RESTART_ALL for c in pod.all_containers for rule in c.restart_policy_rules or []
    )


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
