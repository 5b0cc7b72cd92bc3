"""Mounts subPaths: a part of a volume, opened safely, is mounted where no container can change it.

The part is opened once below the volume, and that descriptor is mounted at
`<pod>/volume-subpaths/<volume>/<container>/<index>`, as in the kubelet. The runtime gets this path, so later
changes of names inside of the volume have no effect.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, Refused
from engine.api.pod import VolumeMount
from engine.host.mounts import bind, unmount
from engine.host.safe_open import HANDLE, make_directories, mount_id, open_beneath, opened
from engine.node.spec.environment import expand, references

DIRECTORY = "volume-subpaths"
MOST_LINKS: Final = 255
"""Links of one path that Go's `EvalSymlinks` follows."""

log = logging.getLogger("kubengine.volumes")


def expanded_sub_path(mount: VolumeMount, environment: Mapping[str, str]) -> str:
    """Return the subPath of a mount with `subPathExpr` expanded; '' for the whole volume.

    Raises `InvalidInput` for a path that leads outside, and for a variable without a value.
    """
    sub_path = mount.sub_path
    if mount.sub_path_expr:
        missing = sorted(name for name in references(mount.sub_path_expr) if not environment.get(name))
        if missing:
            raise InvalidInput(f"missing value for {', '.join(missing)}")
        sub_path = expand(mount.sub_path_expr, environment)
    if sub_path.startswith("/"):
        raise InvalidInput(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise InvalidInput(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    return sub_path


def mount_sub_path(
    pod_directory: Path, volume_name: str, volume: Path, sub_path: str, container: str, index: int
) -> Path:
    """Mount `sub_path` of a volume for a container's `index`-th mount, creating it if missing; return where.

    Raises `Refused`. The reason why a path was refused is only logged, because it could reveal facts about
    the host.
    """
    try:
        top = os.open(volume, HANDLE)
        try:
            part = _open_part(top, volume, sub_path)
        finally:
            os.close(top)
    except OSError as error:
        log.warning("subPath %r of volume %s cannot be opened: %s", sub_path, volume, error)
        text = f'failed to prepare subPath for volumeMount "{volume_name}" of container "{container}"'
        raise Refused(text, errno=error.errno) from error
    try:
        target = pod_directory / DIRECTORY / volume_name / container / str(index)
        with opened(pod_directory) as pods_own:
            os.close(make_directories(pods_own, f"{DIRECTORY}/{volume_name}/{container}", 0o750))
        _mount(part, target)
    except OSError as error:
        why = "needs the permission to mount" if error.errno == errno.EPERM else error.strerror
        text = f'subPath of volumeMount "{volume_name}" of container "{container}": {why}'
        raise Refused(text, subject=str(target), errno=error.errno) from error
    finally:
        os.close(part)
    return target


def _open_part(top: int, volume: Path, sub_path: str) -> int:
    """Open the subPath. As in the kubelet, links that stay inside the volume are followed: their target is
    computed first, and then opened without following links.
    """
    try:
        return _open_or_make(top, sub_path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    base = _real(volume.absolute())
    return _open_or_make(top, os.path.relpath(_real(base / sub_path), base))


def _real(path: Path) -> Path:
    """Return the absolute path with all links resolved; missing components stay.

    Raise OSError (ELOOP) after as many links as the kubelet follows: Python's own `realpath` has no such
    limit, or overflows the stack.
    """
    real, rest, links = Path("/"), str(path).split("/")[::-1], 0
    while rest:
        part = rest.pop()
        if part == "..":
            real = real.parent
        elif part not in ("", "."):
            step = real / part
            try:
                target = os.fspath(step.readlink())
            except OSError:
                real = step
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            real = Path("/") if target.startswith("/") else real
            rest += target.split("/")[::-1]
    return real


def _open_or_make(top: int, path: str) -> int:
    """Open a directory; a missing one is created with the mode of the volume."""
    try:
        return open_beneath(top, path, HANDLE)
    except FileNotFoundError:
        return make_directories(top, path, stat.S_IMODE(os.fstat(top).st_mode))


def _mount(part: int, target: Path) -> None:
    """Mount the part, unless it is mounted there already; another leftover is removed first."""
    wanted = os.fstat(part)
    while (found := _mounted(target)) is not None:
        try:
            if os.path.samestat(os.fstat(found), wanted):
                return
            unmount(found)
        finally:
            os.close(found)
    if stat.S_ISDIR(wanted.st_mode):
        with suppress(FileNotFoundError, IsADirectoryError):
            target.unlink()
        target.mkdir(mode=0o750, exist_ok=True)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            target.rmdir()
        target.touch(mode=0o640)
    try:
        bind(part, target)
    except OSError:
        with suppress(OSError):
            target.rmdir() if stat.S_ISDIR(wanted.st_mode) else target.unlink()
        raise


def _mounted(target: Path) -> int | None:
    """Open what is mounted at a path; return None if nothing is."""
    try:
        found = os.open(target, HANDLE | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    parent = os.open(target.parent, HANDLE | os.O_DIRECTORY)
    try:
        if mount_id(found) != mount_id(parent):
            return found
    finally:
        os.close(parent)
    os.close(found)
    return None
