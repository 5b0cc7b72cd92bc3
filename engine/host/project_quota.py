"""Project quotas of ext4 and XFS: which project a directory's files belong to, and what the kernel counts.

What is made in a directory that passes its project on belongs to it, and counts until its blocks are free: a
file that was deleted while a process holds it open, too, which no walk finds. Linux 5.14 for the count.
Source: ioctl_fsgetxattr(2), quotactl(2), the kernel's fs/quota.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from engine.api.errors import Unavailable
from engine.host.checksummed_file import keep, kept
from engine.host.trees import disk_usage

_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_ATTRIBUTES: Final = struct.Struct("=IIIII8x")
_PASSED_ON: Final = 0x200
_QUOTACTL_FD: Final = 443
_GET_QUOTA_OF_PROJECT: Final = (0x800007 << 8) | 2
_QUOTA: Final = struct.Struct("=QQQQQQQQI4x")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger("kubengine.files")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def assign(directory: Path, project: int) -> None:
    """Let the directory, and what is made in it from now on, belong to a project. Raises `OSError`."""
    with _directory(directory) as opened:
        flags, extent, extents, _project, cow = _ATTRIBUTES.unpack(
            fcntl.ioctl(opened, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
        )
        wanted = _ATTRIBUTES.pack(flags | _PASSED_ON, extent, extents, project, cow)
        fcntl.ioctl(opened, _SET_ATTRIBUTES, wanted)


def counted(directory: Path, project: int) -> tuple[int, int]:
    """Bytes and inodes of a project on the file system that a directory is on. Raises `OSError` where the
    kernel counts none there."""
    answer = ctypes.create_string_buffer(_QUOTA.size)
    with _directory(directory) as opened:
        if _libc.syscall(_QUOTACTL_FD, opened, _GET_QUOTA_OF_PROJECT, project, answer) < 0:
            number = ctypes.get_errno()
            if number == errno.ENOENT:  # XFS: nobody has used it
                return 0, 0
            raise OSError(number, os.strerror(number), os.fspath(directory))
    _hard, _soft, space, _ihard, _isoft, inodes, *_rest = _QUOTA.unpack(answer.raw)
    return space, inodes


def keep_project(record: Path, project: int) -> None:
    """Writes down whose a directory's files are. Raises `Refused`."""
    keep(record, str(project).encode())


def kept_project(record: Path) -> int | None:
    """What was written down, None where nothing was, or nothing that can be read."""
    try:
        return kept(record, int, without="its files are counted one by one")
    except Unavailable as error:
        log.warning("%s; its files are counted one by one", error)
        return None


def volume_usage(directory: Path, record: Path) -> tuple[int, int, bool]:
    """Bytes, inodes, and whether the kernel counted them: for the project that `record` names, else, or where
    it counts none, by a walk. `record` lies where no container can write."""
    project = kept_project(record)
    if project is not None:
        with suppress(OSError):
            return *counted(directory, project), True
    return *disk_usage(directory), False


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
