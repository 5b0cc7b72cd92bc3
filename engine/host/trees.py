"""Measures and removes trees that a container created and may still change.

Such a tree can be deeper than any path may be long, or than there are descriptors; it can be too wide for
memory, full of links to the host, and have the host mounted in it. The walk therefore keeps one small record
per level, holds only the directories of the first levels open, returns from deeper ones by `..` (which it
verifies), and neither follows links nor enters mounts. What vanishes meanwhile is ignored.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import closing

import msgspec

from engine.host.safe_open import open_beneath, opened

HELD_LEVELS = 64
_BUFFER_BYTES = 4096
_PASSES = 16
_MOST_LINKED = 65536
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = struct.Struct("=QqHB")
_DT_UNKNOWN, _DT_DIR = 0, 4

_libc = ctypes.CDLL(None, use_errno=True)
# musl has the call under the older name only, with the same entries.
_getdents = getattr(_libc, "getdents64", None) or _libc.getdents
_getdents.restype = ctypes.c_int  # musl's; the lower half of glibc's ssize_t, which a length fits
_getdents.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)


class Visit(msgspec.Struct, frozen=True):
    """Hold one entry of `directory`, a descriptor that is open until the next visit; a directory comes
    after its content.
    """

    directory: int
    name: str
    is_directory: bool


class _Level(msgspec.Struct):
    """Hold a directory on the way down: its identity, and where in it the walk continues."""

    name: str
    device: int
    inode: int
    offset: int = 0
    ahead: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    descriptor: int = -1


def walk(top: int) -> Generator[Visit, None, None]:
    """Yield everything below an open directory, which stays open. Raises `OSError` if `top`
    cannot be read.
    """
    levels = [_level("", os.open(".", _DIRECTORY, dir_fd=top))]
    try:
        while True:
            level = levels[-1]
            below = None
            for name, kind in _entries(level):
                # Some file systems do not store types in their directories (readdir(3)).
                if kind == _DT_DIR or (kind == _DT_UNKNOWN and _is_directory(level.descriptor, name)):
                    below = _enter(level.descriptor, name)
                    if below is not None:
                        break
                    yield Visit(level.descriptor, name, True)
                else:
                    yield Visit(level.descriptor, name, False)
            if below is not None:
                # A tree may be deeper than the limit of open files.
                if len(levels) > HELD_LEVELS:
                    _close(level)
                levels.append(below)
                continue
            left = _come_up(levels)
            if not levels:
                return
            yield Visit(levels[-1].descriptor, left, True)
    finally:
        for level in levels:
            if level.descriptor >= 0:
                os.close(level.descriptor)


def disk_usage(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return bytes on disk and inodes at and below `path`, in one file system and one mount.

    A hard-linked file counts once; beyond 65,536 of them, each link counts its share. What vanishes
    meanwhile or cannot be read is left out.
    """
    directory, name = os.path.split(os.path.abspath(path))
    try:
        with opened(directory) as parent:
            top = os.stat(name or ".", dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(top.st_mode):
                return top.st_blocks * 512, 1
            descriptor = open_beneath(parent, name, _DIRECTORY)
    except OSError:
        return 0, 0
    size, inodes, linked = float(top.st_blocks * 512), 1.0, set[int]()
    try:
        with closing(walk(descriptor)) as visits:
            for visit in visits:
                try:
                    found = os.stat(visit.name, dir_fd=visit.directory, follow_symlinks=False)
                except OSError:
                    continue
                # An overlay, or a mount that appeared during the walk, belongs to another file system.
                if found.st_dev != top.st_dev or found.st_ino in linked:
                    continue
                share = 1.0
                if found.st_nlink > 1 and not visit.is_directory:
                    if len(linked) < _MOST_LINKED:
                        linked.add(found.st_ino)
                    else:
                        share = 1 / found.st_nlink
                size += found.st_blocks * 512 * share
                inodes += share
    finally:
        os.close(descriptor)
    return round(size), round(inodes)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a file, or a directory with all its content; a missing one is fine.

    Links are removed rather than their targets, and nothing is removed through a mount. Removes as much as
    possible, then raises the first `OSError`, naming the path: EBUSY for a mount point.
    """
    directory, name = os.path.split(os.path.abspath(path))
    try:
        with opened(directory) as parent:
            remove_beneath(parent, name)
    except FileNotFoundError:
        return
    except OSError as error:
        where = os.path.join(directory, str(error.filename or name))
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), where) from error


def remove_beneath(parent: int, name: str) -> None:
    """Remove an entry of an open directory in the same way; the path in an error begins with `name`."""
    try:
        os.unlink(name, dir_fd=parent)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        # Linux returns EISDIR for unlink(2) of a directory, POSIX asks for EPERM.
        if error.errno not in (errno.EISDIR, errno.EPERM) or not _is_directory(parent, name):
            raise
    try:
        top = open_beneath(parent, name, _DIRECTORY, same_mount=True)
    except OSError as error:
        # A mount point: unmounting is somebody else's task, and its content must survive.
        if error.errno == errno.EXDEV:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name) from error
        raise
    try:
        # A container that still runs may create files behind the walk; each pass must make progress.
        for _ in range(_PASSES):
            removed, failure = _empty(top)
            if failure is not None:
                path = f"{name}/…/{failure.filename}"
                raise OSError(failure.errno or errno.EIO, failure.strerror, path) from failure
            try:
                os.rmdir(name, dir_fd=parent)
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not removed:
                    raise
        raise OSError(errno.ENOTEMPTY, "is filled as fast as it is emptied", name)
    finally:
        os.close(top)


def _empty(top: int) -> tuple[int, OSError | None]:
    """Empty a directory; return how much below `top` was removed, and the first failure that counts."""
    removed, failure = 0, None
    with closing(walk(top)) as visits:
        for visit in visits:
            try:
                if visit.is_directory:
                    os.rmdir(visit.name, dir_fd=visit.directory)
                else:
                    os.unlink(visit.name, dir_fd=visit.directory)
                removed += 1
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
                    failure = failure or error
    return removed, failure


def _entries(level: _Level) -> Iterator[tuple[str, int]]:
    """Return the rest of a directory, name and type, after the last entry given."""
    while True:
        if not level.ahead:
            level.ahead = _read_entries(level.descriptor)
            if not level.ahead:
                return
        # The position behind the entry, so that the walk continues there after the directory was closed and
        # opened again.
        name, kind, level.offset = level.ahead.pop()
        if name not in (".", ".."):
            yield name, kind


def _read_entries(directory: int) -> list[tuple[str, int, int]]:
    """Return name, type and position, last one first; an unreadable directory has no entries."""
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    # Not `os.scandir`, which does not give positions, and which would hold all entries of a huge directory.
    length = _getdents(directory, buffer, _BUFFER_BYTES)
    if length <= 0:
        return []
    data, entries, at = buffer.raw, [], 0
    while at < length:
        _, behind, size, kind = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size
        entries.append((os.fsdecode(data[start : data.index(0, start)]), kind, behind))
        at += size
    entries.reverse()
    return entries


def _enter(directory: int, name: str) -> _Level | None:
    """Enter a directory; return None if it is gone, not a directory, unreadable or a mount point."""
    try:
        descriptor = open_beneath(directory, name, _DIRECTORY, same_mount=True)
    except OSError:
        return None
    return _level(name, descriptor)


def _level(name: str, descriptor: int) -> _Level:
    found = os.fstat(descriptor)
    return _Level(name, found.st_dev, found.st_ino, descriptor=descriptor)


def _close(level: _Level) -> None:
    os.close(level.descriptor)
    level.descriptor = -1
    level.ahead = []


def _come_up(levels: list[_Level]) -> str:
    """Leave the deepest level; if its parent has been replaced by now, leave all up to one that is held.

    Returns the name of what was left, in the level that is now the deepest.
    """
    left = levels.pop()
    if levels and levels[-1].descriptor < 0:
        _open_parent(left.descriptor, levels[-1])
    os.close(left.descriptor)
    while levels and levels[-1].descriptor < 0:
        left = levels.pop()
    return left.name


def _open_parent(below: int, level: _Level) -> None:
    try:
        descriptor = os.open("..", _DIRECTORY, dir_fd=below)
    except OSError:
        return
    found = os.fstat(descriptor)
    # Somebody may have moved the lower directory meanwhile: `..` would then lead elsewhere, possibly outside.
    if (found.st_dev, found.st_ino) == (level.device, level.inode):
        os.lseek(descriptor, level.offset, os.SEEK_SET)
        level.descriptor = descriptor
    else:
        os.close(descriptor)


def _is_directory(directory: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False
