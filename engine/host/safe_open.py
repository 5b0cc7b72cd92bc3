"""Opens files whose names others may change at any time, so that no name leads outside.

A container may replace anything in its volumes at any moment: a directory by a link to the host's root, a
file by a FIFO. Such a path is therefore never passed to the kernel twice. It is resolved once below a
directory that is already open, by openat2(2), or if the kernel or a sandbox does not have that call, step by
step with O_NOFOLLOW; from then on the descriptor is used instead of the name.

Every function raises `OSError` naming the path: ELOOP for a link, EXDEV for a path that leads outside.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HANDLE = os.O_PATH | os.O_CLOEXEC
"""Opens an object without touching it: no FIFO blocks, no device wakes up."""

_OPENAT2 = 437
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_IN_ROOT = 0x10
_STRICT = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
_ATTEMPTS = 128
_MOST_LINKS = 40
_LONGEST_LOOKUP = 4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a directory whose own path only the owner of the host can change; links are followed."""
    directory = os.open(path, HANDLE | os.O_DIRECTORY)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def opened_parent(path: str | os.PathLike[str], top: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Open the directory that holds `path`, and return it with the name; no link is followed below `top`.

    Only the owner of the host can change `top`; for a path elsewhere it is the root.
    """
    below, start = os.path.relpath(path, top), top
    if below.split("/")[0] == "..":
        below, start = os.path.relpath(path, "/"), "/"
    where, name = os.path.split(below)
    with opened(start) as directory:
        try:
            parent = open_beneath(directory, where, HANDLE | os.O_DIRECTORY)
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror, os.fspath(path)) from error
    try:
        yield parent, name
    finally:
        os.close(parent)


def open_beneath(directory: int, path: str, flags: int, mode: int = 0, *, same_mount: bool = False) -> int:
    """Open a path below an open directory without following any link; `..` always leads outside.

    `flags` and `mode` are those of open(2); the descriptor is closed on exec. With `same_mount`, mount
    points on the way count as outside too.
    """
    parts = _parts(path)
    if path.startswith("/") or ".." in parts:
        raise _error(errno.EXDEV, "leads out of the directory", path)
    at, held = directory, -1
    try:
        while len(os.fsencode("/".join(parts))) > _LONGEST_LOOKUP:
            head, parts = _split(parts)
            at = _open_strict(at, head, HANDLE | os.O_DIRECTORY, 0, path, same_mount)
            _close(held)
            held = at
        return _open_strict(at, parts, flags | os.O_CLOEXEC, mode, path, same_mount)
    finally:
        _close(held)


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path as a process with the root directory `root` would: links stay inside of it."""
    flags |= os.O_CLOEXEC
    if has_openat2():
        return _openat2(root, "/".join(_parts(path)) or ".", flags, mode, _RESOLVE_IN_ROOT, path)
    return open_beneath(root, "/".join(_resolve_in_root(root, path)), flags, mode)


def make_directories(directory: int, path: str, mode: int) -> int:
    """Open a directory below another; missing ones are created with exactly `mode`."""
    parts = _parts(path)
    if path.startswith("/") or ".." in parts:
        raise _error(errno.EXDEV, "leads out of the directory", path)
    at = os.open(".", HANDLE | os.O_DIRECTORY, dir_fd=directory)
    try:
        for part in parts:
            made = False
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
                made = True
            below = _open_strict(at, [part], HANDLE | os.O_DIRECTORY, 0, path)
            os.close(at)
            at = below
            if made:
                os.chmod(same_file(at), mode)
    except BaseException:
        os.close(at)
        raise
    return at


def open_regular(directory: int, path: str) -> int:
    """Open a regular file below a directory for reading. EINVAL for anything else, which is not touched."""
    handle = open_beneath(directory, path, HANDLE)
    try:
        return _reopen(handle, path)
    finally:
        os.close(handle)


def read_regular(directory: int, path: str, limit: int, *, from_end: bool = False) -> bytes:
    """Read at most `limit` bytes of a regular file, the first or the last ones. EINVAL for anything else."""
    return _read(open_regular(directory, path), limit, from_end)


def read_handle(handle: int, path: str, limit: int) -> bytes:
    """Return the first bytes of a regular file that is open with `HANDLE`; `path` is for errors."""
    return _read(_reopen(handle, path), limit, False)


def _reopen(handle: int, path: str) -> int:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise _error(errno.EINVAL, "is not a regular file", path)
    return os.open(same_file(handle), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _read(descriptor: int, limit: int, from_end: bool) -> bytes:
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if from_end:
            file.seek(max(0, os.fstat(descriptor).st_size - limit))
        read = bytearray()
        while len(read) < limit and (part := file.read(limit - len(read))):
            read += part
        return bytes(read)


def create_regular(
    directory: int, name: str, data: bytes, mode: int, *, uid: int = -1, gid: int = -1
) -> None:
    """Create a file of exactly this mode and owner, which others see before it is complete. Raises EEXIST if
    the name is taken.
    """
    _check_name(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
        file.write(data)
        file.flush()
        if (uid, gid) != (-1, -1):
            os.fchown(file.fileno(), uid, gid)
        os.fchmod(file.fileno(), mode)


def write_regular(directory: int, name: str, data: bytes, mode: int, *, uid: int = -1, gid: int = -1) -> None:
    """Replace whatever has the name by a new file of exactly this mode and owner, in one step."""
    _check_name(name)
    temporary = f".{os.urandom(8).hex()}.new"
    try:
        create_regular(directory, temporary, data, mode, uid=uid, gid=gid)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _check_name(name: str) -> None:
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise _error(errno.EINVAL, "is not a name", name)


def same_file(descriptor: int) -> str:
    """Return a path to what a descriptor refers to, whatever its name is by now; mount(2) accepts it."""
    return f"/proc/self/fd/{descriptor}"


def mount_id(descriptor: int) -> int:
    """Return the mount through which an open file was reached, as /proc/self/mountinfo numbers it."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


@functools.cache
def has_openat2() -> bool:
    """Tell whether the kernel (5.6 and later) has the call and no sandbox forbids it."""
    try:
        os.close(_openat2(-100, ".", HANDLE, 0, _RESOLVE_NO_MAGICLINKS, "."))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True


def _open_strict(
    directory: int, parts: list[str], flags: int, mode: int, path: str, same_mount: bool = False
) -> int:
    if has_openat2():
        resolve = _STRICT | _RESOLVE_NO_XDEV if same_mount else _STRICT
        return _openat2(directory, "/".join(parts) or ".", flags, mode, resolve, path)
    at, held = directory, -1
    try:
        for part in parts[:-1]:
            at = _open_one(at, part, HANDLE | os.O_DIRECTORY, 0, path, same_mount)
            _close(held)
            held = at
        return _open_one(at, parts[-1] if parts else ".", flags, mode, path, same_mount)
    finally:
        _close(held)


def _open_one(directory: int, name: str, flags: int, mode: int, path: str, same_mount: bool) -> int:
    """Open one component; a link is ELOOP, which the kernel reports in three ways."""
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=directory)
    except OSError as error:
        code = error.errno or errno.EIO
        if code == errno.ENOTDIR and _is_link(directory, name):
            code = errno.ELOOP
        raise OSError(code, os.strerror(code), path) from error
    code = 0
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(descriptor).st_mode):
        code = errno.ELOOP
    elif same_mount and mount_id(descriptor) != mount_id(directory):
        code = errno.EXDEV
    if code:
        os.close(descriptor)
        raise OSError(code, os.strerror(code), path)
    return descriptor


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _openat2(directory: int, lookup: str, flags: int, mode: int, resolve: int, path: str) -> int:
    how = _OpenHow(flags, mode if flags & os.O_CREAT else 0, resolve)
    name = os.fsencode(lookup)
    for _ in range(_ATTEMPTS):
        descriptor: int = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), path)


def _resolve_in_root(root: int, path: str) -> list[str]:
    """Resolve links inside of `root`. The result may change before its use, so open it strictly."""
    ahead, done, links = deque(_parts(path)), list[str](), 0
    while ahead:
        part = ahead.popleft()
        if part == "..":
            del done[-1:]
            continue
        target = _link_target(root, [*done, part])
        if target is None:
            done.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        ahead.extendleft(reversed(_parts(target)))
    return done


def _link_target(root: int, parts: list[str]) -> str | None:
    """Return the target of a link; None for anything else."""
    try:
        parent = open_beneath(root, "/".join(parts[:-1]), HANDLE | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        return os.readlink(parts[-1], dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
    finally:
        os.close(parent)


def _parts(path: str) -> list[str]:
    if "\0" in path:
        raise _error(errno.EINVAL, "holds a NUL", path)
    return [part for part in path.split("/") if part not in ("", ".")]


def _split(parts: list[str]) -> tuple[list[str], list[str]]:
    """Split off the longest prefix that one lookup accepts."""
    length = 0
    for index, part in enumerate(parts):
        length += len(os.fsencode(part)) + 1
        if length > _LONGEST_LOOKUP and index:
            return parts[:index], parts[index:]
    return parts, []


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _error(code: int, text: str, path: str) -> OSError:
    return OSError(code, text, path)
