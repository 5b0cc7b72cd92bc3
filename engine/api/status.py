"""Pod status as the kubelet reports it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from engine.api.quantity import Quantity
from engine.api.struct import Struct, written


class ContainerStateWaiting(Struct):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(Struct):
    started_at: datetime | None = written(None)


class ContainerStateTerminated(Struct):
    exit_code: int
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = written(None)
    finished_at: datetime | None = written(None)
    container_id: str = ""


def lost_end() -> ContainerStateTerminated:
    """Return the terminated state of a container whose exit was not observed, with the kubelet's message."""
    text = "The container could not be located when the pod was terminated"
    return ContainerStateTerminated(exit_code=137, reason="ContainerStatusUnknown", message=text)


class ContainerState(Struct):
    """Hold one of the three states, or none while nothing is known."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ResourceAmounts(Struct):
    """Hold the amounts that a container really has, as `status.containerStatuses[].resources`."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class ImageVolumeStatus(Struct):
    """Name the image in an image volume, as the runtime identifies it."""

    image_ref: str


class VolumeStatus(Struct):
    """Describe the volume of a mount; only image volumes have a status."""

    image: ImageVolumeStatus | None = None


class VolumeMountStatus(Struct):
    """Describe a mount. `recursive_read_only` is Disabled or Enabled, and set only for a read-only mount."""

    name: str
    mount_path: str
    read_only: bool = False
    recursive_read_only: str | None = None
    volume_status: VolumeStatus | None = None


class LinuxContainerUser(Struct):
    uid: int
    gid: int
    supplemental_groups: list[int] | None = None


class ContainerUser(Struct):
    """Name the user of a container's first process, if the runtime reports it."""

    linux: LinuxContainerUser | None = None


class ContainerStatus(Struct):
    """Hold the status of a container; fields without a default are always written, as the kubelet does."""

    name: str
    ready: bool
    restart_count: int
    image: str
    image_id: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)
    container_id: str = ""
    started: bool | None = None
    allocated_resources: dict[str, Quantity] | None = None
    resources: ResourceAmounts | None = None
    allocated_resources_status: list[dict[str, Any]] | None = None
    volume_mounts: list[VolumeMountStatus] | None = None
    user: ContainerUser | None = None
    stop_signal: str | None = None


class PodCondition(Struct):
    type: str
    status: str
    observed_generation: int = 0
    last_probe_time: datetime | None = written(None)
    last_transition_time: datetime | None = written(None)
    reason: str = ""
    message: str = ""


class IP(Struct):
    ip: str


class PodResourceClaimStatus(Struct):
    """Name the claim that was made for one of `spec.resourceClaims`; it has no name where none is needed."""

    name: str
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Struct):
    """Map a container's extended resource to the request of a claim that stands for it."""

    container_name: str
    resource_name: str
    request_name: str


class ExtendedResourceClaimStatus(Struct):
    """Name the claim that the scheduler made for the extended resources of a pod that drivers offer."""

    request_mappings: list[ContainerExtendedResourceRequest] | None = None
    resource_claim_name: str = ""


class PodStatus(Struct):
    phase: str = ""
    observed_generation: int = 0
    conditions: list[PodCondition] | None = None
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = ""
    host_ips: list[IP] | None = None
    pod_ip: str = ""
    pod_ips: list[IP] | None = None
    start_time: datetime | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None
    qos_class: str = ""
    resize: str = ""
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None
    resources: ResourceAmounts | None = None
    allocated_resources: dict[str, Quantity] | None = None


_OWN_CONDITIONS = frozenset(
    (
        "PodScheduled", "Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers",
        "PodResizePending", "PodResizeInProgress", "AllContainersRestarting",
    )
)  # fmt: skip


def is_own_condition(kind: str) -> bool:
    """Return whether the node alone sets the condition; it keeps those of other types (kubelet v1.36)."""
    return kind in _OWN_CONDITIONS
