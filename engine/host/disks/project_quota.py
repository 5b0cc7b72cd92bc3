"""Uses project quotas of ext4 and XFS: which project files belong to, and what the kernel counts.

Files created in a directory that passes its project on belong to it, and count until their blocks are free,
even if a deleted file is still open, which no walk finds. The count needs Linux 5.14. Source:
ioctl_fsgetxattr(2), quotactl(2), the kernel's fs/quota.
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
from engine.host.checksummed_file import read_checksummed, write_checksummed
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
    """Assign the directory, and what is created in it from now on, to a project. Raises `OSError`."""
    with _directory(directory) as opened:
        flags, extent, extents, _project, cow = _ATTRIBUTES.unpack(
            fcntl.ioctl(opened, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
        )
        wanted = _ATTRIBUTES.pack(flags | _PASSED_ON, extent, extents, project, cow)
        fcntl.ioctl(opened, _SET_ATTRIBUTES, wanted)


def counted(directory: Path, project: int) -> tuple[int, int]:
    """Return bytes and inodes of a project on a directory's file system. Raises `OSError` without
    such a count.
    """
    answer = ctypes.create_string_buffer(_QUOTA.size)
    with _directory(directory) as opened:
        if _libc.syscall(_QUOTACTL_FD, opened, _GET_QUOTA_OF_PROJECT, project, answer) < 0:
            number = ctypes.get_errno()
            if number == errno.ENOENT:  # XFS returns this for a project without files
                return 0, 0
            raise OSError(number, os.strerror(number), os.fspath(directory))
    _hard, _soft, space, _ihard, _isoft, inodes, *_rest = _QUOTA.unpack(answer.raw)
    return space, inodes


def keep_project(record: Path, project: int) -> None:
    """Record the project of a directory. Raises `Refused`."""
    write_checksummed(record, str(project).encode())


def kept_project(record: Path) -> int | None:
    """Return the recorded project, or None if there is none that can be read."""
    try:
        return read_checksummed(record, int, without="its files are counted one by one")
    except Unavailable as error:
        log.warning("%s; its files are counted one by one", error)
        return None


def volume_usage(directory: Path, record: Path) -> tuple[int, int, bool]:
    """Return bytes, inodes, and whether the kernel counted them.

    It counts the project that `record` names; otherwise the files are walked. `record` is where no container
    can write.
    """
    project = kept_project(record)
    if project is not None:
        # A remount without quotas, or an older kernel: the walk always works.
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
