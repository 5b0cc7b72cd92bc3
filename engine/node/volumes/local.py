"""Binds directories of the node, as local persistent volumes, into pods."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.api.objects.storage import LocalVolume
from engine.cri.paths import LOCAL_VOLUME, volume_path
from engine.host.mounts import bind, is_mount, restrict
from engine.host.shared_trees import share_tree


def set_up(
    pod_directory: Path,
    name: str,
    directory: Path,
    group: int | None,
    policy: str | None,
    options: Collection[str],
) -> Path:
    """Mount the directory for the pod and return the mount point.

    The directory tree is given to `group` (fsGroup), unless another pod uses it, it already belongs to the
    group under the policy OnRootMismatch, or the pod may only read. The path belongs to the owner of the
    host and is trusted. Raises `Refused` or `OSError`.
    """
    target = volume_path(pod_directory, LOCAL_VOLUME, name)
    if not is_mount(target):
        shares = group is not None and "ro" not in options and not users(pod_directory.parent, name)
        _bind(directory, target, group if shares else None, policy)
    # Also for an existing mount: the agent may have crashed between the two calls.
    restrict(target, options)
    return target


def _bind(directory: Path, target: Path, group: int | None, policy: str | None) -> None:
    source = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if group is not None:
            share_tree(source, group, policy)
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        target.mkdir(mode=0o750, exist_ok=True)
        bind(source, target)
    finally:
        os.close(source)


def check_path(volume: LocalVolume) -> None:
    """Check the path. Raises `InvalidInput`."""
    if not volume.path.startswith("/") or ".." in volume.path.split("/") or "\0" in volume.path:
        raise InvalidInput(f"invalid path: {volume.path!r} must be absolute and not contain '..'")


def users(pods: Path, name: str) -> set[str]:
    """Return the uids of the pods below `pods` that have the volume mounted now."""
    mounts = pods.glob(f"*/volumes/{LOCAL_VOLUME}/{name}")
    return {path.parents[2].name for path in mounts if is_mount(path)}
