"""Adds ephemeral containers to a running pod: each is started once and never again. Pure.

Source: kubelet v1.36 `kuberuntime` (computePodActions, getTargetID).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine.api.errors import InvalidInput
from engine.api.pod import Container, EphemeralContainer, Pod
from engine.api.status import ContainerStatus
from engine.cri.records import CREATED, PodRecord


def ephemeral_containers_to_start(pod: Pod, record: PodRecord) -> Iterator[EphemeralContainer]:
    """Return the ephemeral containers that never ran, according to the runtime and the pod's status."""
    for container in pod.ephemeral_containers:
        found = record.container(container.name)
        begun = known_begun(pod, container) is not None if found is None else found.state != CREATED
        if not begun:
            yield container


def known_begun(pod: Pod, container: EphemeralContainer) -> ContainerStatus | None:
    """Return the status of a container that has run once, or None if the pod's status has none."""
    for status in pod.status.ephemeral_container_statuses or []:
        states = (status.state, status.last_state)
        if status.name == container.name and any(s.running or s.terminated for s in states):
            return status
    return None


def target_id(container: Container, record: PodRecord) -> str:
    """Return the runtime id of the container whose processes an ephemeral container shares, or '' without a
    target.

    Raises `InvalidInput` if the runtime does not hold that container.
    """
    name = container.target_container_name if isinstance(container, EphemeralContainer) else ""
    found = record.container(name) if name else None
    if name and found is None:
        raise InvalidInput(f"unable to find target container {name}")
    return found.id if found is not None else ""


def with_ephemeral_containers_of(wanted: Pod, pod: Pod) -> Pod:
    """Return `pod` with the desired ephemeral containers."""
    if wanted.spec.ephemeral_containers == pod.spec.ephemeral_containers:
        return pod
    spec = msgspec.structs.replace(pod.spec, ephemeral_containers=wanted.spec.ephemeral_containers)
    return msgspec.structs.replace(pod, spec=spec)
