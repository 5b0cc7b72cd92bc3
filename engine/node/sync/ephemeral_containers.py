"""Ephemeral containers: added to a pod that runs, begun once, never again. Pure.

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
    """Those that never ran, as far as the runtime or the pod's status knows."""
    for container in pod.ephemeral_containers:
        found = record.container(container.name)
        begun = known_begun(pod, container) is not None if found is None else found.state != CREATED
        if not begun:
            yield container


def known_begun(pod: Pod, container: EphemeralContainer) -> ContainerStatus | None:
    """The pod's status of a container that ran once, None if it says of none."""
    for status in pod.status.ephemeral_container_statuses or []:
        states = (status.state, status.last_state)
        if status.name == container.name and any(s.running or s.terminated for s in states):
            return status
    return None


def target_id(container: Container, record: PodRecord) -> str:
    """The runtime's id of the container whose processes an ephemeral one is to see, '' if it names none.

    Raises `InvalidInput` for one that the runtime does not hold.
    """
    name = container.target_container_name if isinstance(container, EphemeralContainer) else ""
    found = record.container(name) if name else None
    if name and found is None:
        raise InvalidInput(f"unable to find target container {name}")
    return found.id if found is not None else ""


def with_ephemeral_containers_of(wanted: Pod, pod: Pod) -> Pod:
    """`pod` with the ephemeral containers that are wanted."""
    if wanted.spec.ephemeral_containers == pod.spec.ephemeral_containers:
        return pod
    spec = msgspec.structs.replace(pod.spec, ephemeral_containers=wanted.spec.ephemeral_containers)
    return msgspec.structs.replace(pod, spec=spec)
