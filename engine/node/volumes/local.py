"""Local persistent volumes: a directory of the node, bound into the pod's own."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, Refused
from engine.api.storage import LocalVolume
from engine.cri.paths import LOCAL_VOLUME, volume_path
from engine.host.beneath import HANDLE, open_beneath, same_file
from engine.host.mounts import bind, is_mount
from engine.host.trees import walk

_GROUP_FILE, _GROUP_DIRECTORY = 0o660, 0o2770
ON_ROOT_MISMATCH: Final = "OnRootMismatch"


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
        is_right = policy == ON_ROOT_MISMATCH and group is not None and _belongs(directory, group)
        if group is not None and not is_right and not _is_used(pod_directory, name):
            _share(directory, group)
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


def _belongs(directory: int, group: int) -> bool:
    found = os.fstat(directory)
    return found.st_gid == group and found.st_mode & _GROUP_DIRECTORY == _GROUP_DIRECTORY


def _share(top: int, group: int) -> None:
    """From the bottom up, so that who stops halfway finds the top as it was. No link is followed."""
    for visit in walk(top):
        os.chown(visit.name, -1, group, dir_fd=visit.directory, follow_symlinks=False)
        try:
            at = open_beneath(visit.directory, visit.name, HANDLE)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        else:
            _add_mode(at)
            os.close(at)
    os.chown(same_file(top), -1, group)
    _add_mode(top)


def _add_mode(at: int) -> None:
    mode = os.fstat(at).st_mode
    more = _GROUP_DIRECTORY if stat.S_ISDIR(mode) else _GROUP_FILE
    Path(same_file(at)).chmod(stat.S_IMODE(mode) | more)
