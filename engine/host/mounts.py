"""Mounts and unmounts by mount(2), without a command; a descriptor can be the source."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from engine.host.mountinfo import mounts_below
from engine.host.safe_open import HANDLE, open_beneath, opened, same_file

_MS_REMOUNT, _MS_BIND = 0x20, 0x1000
_FLAGS = {
    "ro": 0x1,
    "nosuid": 0x2,
    "nodev": 0x4,
    "noexec": 0x8,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": 0x200000,
}
"""Options that mounts of one file system may have differently (mount(2)); most are statvfs(3)'s too."""
_ST_RELATIME = 0x1000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def bind(descriptor: int, target: Path) -> None:
    """Bind-mount what a descriptor refers to at a path, without mounts below it. Raises `OSError`."""
    _mount(same_file(descriptor), target, "", _MS_BIND, "")


def restrict(target: Path, options: Iterable[str]) -> None:
    """Add the per-mount options to one mount, which keeps those that it has; options of file systems are
    ignored.

    Raises `OSError`.
    """
    wanted = 0
    for option in options:
        wanted |= _FLAGS.get(option, 0)
    had = os.statvfs(target).f_flag
    # A remount of a bind mount replaces all its flags: what is not named again is lost.
    kept = had & sum(flag for name, flag in _FLAGS.items() if name != "relatime")
    # statvfs(3) reports relatime with another bit than mount(2) takes.
    if had & _ST_RELATIME and not wanted & _FLAGS["noatime"]:
        kept |= _FLAGS["relatime"]
    if wanted & ~kept:
        _mount("none", target, "", _MS_REMOUNT | _MS_BIND | kept | wanted, "")


def mount_filesystem(kind: str, target: Path, options: str) -> None:
    """Mount a new file system such as a tmpfs at a path. Raises `OSError`."""
    _mount(kind, target, kind, 0, options)


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    if _libc.mount(*words, flags, os.fsencode(options) if options else None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))


def is_mount(directory: Path) -> bool:
    """Tell whether a path is a mount point, even of the same file system; false if it does not exist, or is a
    link. Raises `OSError`.
    """
    try:
        with opened(directory.parent) as parent:
            return _has_mount(parent, directory.name)
    except FileNotFoundError:
        return False


def _has_mount(parent: int, name: str) -> bool:
    """Tell whether something is mounted on an entry of an open directory; false if there is no such entry.

    Raises `OSError`.
    """
    try:
        # The kernel compares the mounts: device numbers would not show a bind mount of the same file system.
        os.close(open_beneath(parent, name, HANDLE, same_mount=True))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        # A link is no mount point, whatever it leads to.
        if error.errno == errno.ELOOP:
            return False
        raise
    return False


def unmount(descriptor: int) -> None:
    """Unmount the mount whose top a descriptor refers to; processes in it keep it until they are done.

    Raises `OSError`: EINVAL if nothing is mounted.
    """
    # Detached lazily: a process that still has a file open must not block the removal of its pod.
    if _libc.umount2(os.fsencode(same_file(descriptor)), _MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.readlink(same_file(descriptor)))


def clear_mount(parent: int, name: str) -> None:
    """Remove an entry of an open directory with what is mounted on it; a directory only if it is empty.

    Raises `OSError`: ENOTEMPTY if there are files in it.
    """
    unmount_top(parent, name)
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)


def unmount_top(parent: int, name: str) -> None:
    """Unmount what is mounted on an entry of an open directory. Raises `OSError`."""
    # Several mounts may lie on top of each other; each turn removes the topmost.
    while _has_mount(parent, name):
        _unmount_at(parent, name)


def unmount_entries(directory: Path) -> None:
    """Unmount what is mounted on the entries of a directory, which may be missing; deeper mounts stay.

    The table of mounts, which lists those of the whole host, is not read. Raises `OSError`.
    """
    with suppress(FileNotFoundError), opened(directory) as parent:
        for name in os.listdir(directory):
            unmount_top(parent, name)


def unmount_below(directory: Path) -> None:
    """Unmount everything at or below a directory, without following links.

    Raises `OSError` when mounts are left and none of them can be unmounted.
    """
    parent = os.path.dirname(os.path.realpath(directory))
    with opened(parent) as at:
        # Until none is left: a container may mount meanwhile, and of two mounts on one point only the upper
        # one can be reached.
        while points := mounts_below(directory):
            failures = []
            for point in points:
                try:
                    _unmount_at(at, os.path.relpath(point, parent))
                except OSError as error:
                    failures.append(error)
            if len(failures) == len(points):
                raise failures[0]


def _unmount_at(directory: int, path: str) -> None:
    handle = open_beneath(directory, path, HANDLE)
    try:
        unmount(handle)
    finally:
        os.close(handle)
