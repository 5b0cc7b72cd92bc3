"""Local persistent volumes: a directory of the node, bound into the pod's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.api.errors import InvalidInput, Refused
from engine.api.storage import LocalVolume
from engine.cri.paths import LOCAL_VOLUME, volume_path
from engine.host.mounts import bind, is_mount
from engine.host.shared_trees import share_tree


def set_up(
    pod_directory: Path, name: str, volume: LocalVolume, group: int | None, policy: str | None
) -> Path:
    """Where the directory is mounted for the pod; it is given to `group` (fsGroup) with all that is in it,
    but not where another pod has it, or where it is so already and the policy is OnRootMismatch.

    Its own path is the host's owner's, and trusted. Raises `InvalidInput`, `Refused` or `OSError`.
    """
    check_path(volume)
    target = volume_path(pod_directory, LOCAL_VOLUME, name)
    if is_mount(target):
        return target
    directory = os.open(volume.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(directory).st_mode):
            raise Refused("not a directory: file systems on block devices are not supported by this node")
        if group is not None and not _is_used(pod_directory, name):
            share_tree(directory, group, policy)
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        target.mkdir(mode=0o750, exist_ok=True)
        bind(directory, target)
    finally:
        os.close(directory)
    return target


def check_path(volume: LocalVolume) -> None:
    """Raises `InvalidInput`."""
    if not volume.path.startswith("/") or ".." in volume.path.split("/") or "\0" in volume.path:
        raise InvalidInput(f"invalid path: {volume.path!r} must be absolute and not contain '..'")


def _is_used(pod_directory: Path, name: str) -> bool:
    """Whether another pod has it now."""
    return any(is_mount(path) for path in pod_directory.parent.glob(f"*/volumes/{LOCAL_VOLUME}/{name}"))
