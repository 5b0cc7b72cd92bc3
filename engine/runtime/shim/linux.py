"""Wrap system calls that Python 3.11 lacks. Each raises OSError with the path concerned."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MS_STRICTATIME = 1 << 24
MNT_DETACH = 2

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_RDONLY = 1

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
SECCOMP_MODE_FILTER = 2
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

# Numbers above 423 are the same on every architecture.
SYS_OPEN_TREE = 428
SYS_MOVE_MOUNT = 429
SYS_MOUNT_SETATTR = 442


def _is_in_user_namespace() -> bool:
    """Return whether this process is root only in a user namespace, which maps a part of the host's ids."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", str((1 << 32) - 1)]


# Read once, before any container could show a /proc of its own.
IN_USER_NAMESPACE = _is_in_user_namespace()

OVERLAY_ATTRIBUTES = "user.overlay." if IN_USER_NAMESPACE else "trusted.overlay."
"""Prefix of overlayfs's own extended attributes, with and without the mount option `userxattr`."""
OPAQUE_ATTRIBUTE = f"{OVERLAY_ATTRIBUTES}opaque"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def change_owner(path: str | os.PathLike[str], uid: int, gid: int) -> None:
    """Change the owner of the path, not of its target. An owner that the user namespace does not map has no
    effect: the path stays this process's own.
    """
    try:
        os.chown(path, uid, gid, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EINVAL or not IN_USER_NAMESPACE:
            raise


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Join the namespace; do nothing if this process is in it already."""
    try:
        _check(_libc.setns(fd, kind), "setns")
    except PermissionError:
        # Root of a user namespace may not join what belongs to the host, not even where it is already.
        name = os.readlink(f"/proc/self/fd/{fd}")  # such as net:[4026531840]
        if name != os.readlink(f"/proc/self/ns/{name.partition(':')[0]}"):
            raise


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {kind or 'flags'} on {target}")


def umount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    _check(_libc.pivot_root(new.encode(), old.encode()), f"pivot_root {new}")


def open_tree(path: str, *, recursive: bool = True) -> int:
    """Return a detached copy of the mount at `path` (and those below it), as a descriptor."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _check(_libc.syscall(SYS_OPEN_TREE, AT_FDCWD, path.encode(), flags), f"open_tree {path}")


def move_mount(fd: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    result = _libc.syscall(SYS_MOVE_MOUNT, fd, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH)
    _check(result, f"move_mount to {target}")


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def read_only_program(path: str) -> int:
    """Open the file at `path` through a separate read-only mount, so that a process that finds it through
    /proc cannot write it.

    Raise OSError if the kernel does not support it (5.12 does).
    """
    fd = open_tree(os.path.realpath(path), recursive=False)
    try:
        attributes = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
        result = _libc.syscall(
            SYS_MOUNT_SETATTR, fd, b"", AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes)
        )
        _check(result, f"make {path} read-only")
    except OSError:
        os.close(fd)
        raise
    return fd


def make_readonly(path: str, *, recursive: bool = False) -> None:
    """Make the mount at `path` read-only, keeping its other flags."""
    attributes = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE if recursive else 0,
        ctypes.byref(attributes), ctypes.sizeof(attributes),
    )  # fmt: skip
    _check(result, f"make {path} read-only")


def prctl(option: int, argument: int = 0, argument2: int = 0) -> int:
    result = _libc.prctl(
        option, ctypes.c_ulong(argument), ctypes.c_ulong(argument2), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )
    return _check(result, f"prctl {option}")


def hide() -> None:
    """Prevent processes without CAP_SYS_PTRACE from inspecting this process or opening its files through
    /proc, until its exec.

    Forks stay hidden; a change of user may end it.
    """
    prctl(PR_SET_DUMPABLE, 0)


def give_up_privileges() -> None:
    """Drop all capabilities, and prevent an exec from gaining any."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    capset(permitted=(), inheritable=())


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def install_filter(instructions: bytes) -> None:
    """Filter the system calls of this process from now on (`struct sock_filter`s of eight bytes)."""
    program = _Program(len(instructions) // 8, instructions)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def set_process_name(name: str) -> None:
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def capset(*, permitted: Iterable[int], inheritable: Iterable[int]) -> None:
    """Set the permitted set, the effective set (the same) and the inheritable set of this process."""

    def words(numbers: Iterable[int]) -> tuple[int, int]:
        mask = sum(1 << number for number in set(numbers))
        return mask & 0xFFFFFFFF, mask >> 32

    (p0, p1), (i0, i1) = words(permitted), words(inheritable)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(p0, p0, i0, p1, p1, i1)
    _check(_libc.capset(header, data), "capset")


def start_time(pid: int) -> int:
    """Return when `pid` started, in clock ticks since boot; 0 if there is no such process or it is dead.

    A process id may be reused; id and start time together are unique.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the name in parentheses, which may itself contain blanks and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def own_identity() -> tuple[int, int]:
    """Return id and start time of this process as the mounted /proc counts them, whatever
    namespace it is in.
    """
    with open("/proc/self/stat", "rb") as file:
        text = file.read()
    return int(text.split(b" ", 1)[0]), int(text.rpartition(b")")[2].split()[19])
