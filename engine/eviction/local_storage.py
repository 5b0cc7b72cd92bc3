"""Checks local storage limits: an emptyDir's size, a pod's and a container's ephemeral storage. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.api.pod import Pod, Volume
from engine.api.resources import EPHEMERAL_STORAGE, pod_limits
from engine.eviction.layout import Part
from engine.eviction.usage import PodUsage

EMPTY_DIR_LIMIT: Final = "emptydirfs.limit"
POD_LIMIT: Final = "ephemeralpodfs.limit"
CONTAINER_LIMIT: Final = "ephemeralcontainerfs.limit"
_COUNTED: Final[tuple[Part, ...]] = ("root", "logs", "volumes")


class LimitExceeded(msgspec.Struct, frozen=True):
    """Hold an exceeded limit; `signal` is the label in the evictions metric."""

    signal: str
    message: str


def has_limits(pod: Pod) -> bool:
    """Tell whether any local storage of the pod is limited; other pods need not be measured."""
    return (
        any(volume.empty_dir is not None and volume.empty_dir.size_limit for volume in pod.spec.volumes or ())
        or any(EPHEMERAL_STORAGE in container.limits for container in pod.all_containers)
        or EPHEMERAL_STORAGE in (pod.spec.overhead or ())
    )


def exceeded(pod: Pod, usage: PodUsage, *, dedicated_imagefs: bool) -> LimitExceeded | None:
    """Return the first limit that the pod exceeds: volumes, then the whole pod, then its app containers.

    A container's writable layer counts against its own limit unless it lies on a dedicated imagefs.
    """
    for volume in pod.spec.volumes or ():
        limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
        used = usage.volumes.get(volume.name) or usage.in_memory.get(volume.name)
        if limit and used is not None and used.bytes > limit.value > 0:
            return LimitExceeded(
                EMPTY_DIR_LIMIT, f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{limit}". '
            )
    # Without the runtime's statistics the writable layers are missing, and the sums below are too small.
    if not usage.disk_known:
        return None
    total = pod_limits(pod).get(EPHEMERAL_STORAGE)
    if total is not None and usage_of_pod(usage) > total.value:
        return LimitExceeded(
            POD_LIMIT, f"Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
        )
    for container in pod.spec.containers:
        limit = container.limits.get(EPHEMERAL_STORAGE)
        measured = usage.containers.get(container.name)
        if not limit or measured is None:
            continue
        counted = measured.logs.bytes + (0 if dedicated_imagefs else measured.rootfs.bytes)
        if counted > limit.value:
            return LimitExceeded(
                CONTAINER_LIMIT,
                f'Container {container.name} exceeded its local ephemeral storage limit "{limit}". ',
            )
    return None


def usage_of_pod(usage: PodUsage) -> int:
    """Return the bytes that count against the pod's limit: writable layers, logs, local ephemeral volumes,
    hosts file.
    """
    return usage.disk(_COUNTED).bytes + usage.hosts.bytes


def is_local_ephemeral(volume: Volume) -> bool:
    """Tell whether a volume counts as its pod's ephemeral storage (kubelet v1.36)."""
    on_disk = volume.empty_dir is not None and volume.empty_dir.medium == ""
    return on_disk or volume.config_map is not None
