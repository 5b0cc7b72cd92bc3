"""Set the user, groups and capabilities of a container's process, resolved in the image's own files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from typing import Any, NamedTuple

from engine.runtime.shim import linux

CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
MOST = 4 << 20
NOBODY_AT_ALL = (1 << 32) - 1
NUMBER = {name: number for number, name in enumerate(CAPABILITIES)}


class Identity(NamedTuple):
    uid: int
    gid: int
    groups: list[int]
    home: str


def look_up(wanted: dict[str, Any]) -> Identity:
    """Resolve names in /etc/passwd and /etc/group of the current root, which are untrusted files of the
    image.

    `wanted`: `user` (name or number, may be empty), `group` (name, number or empty), `groups` (numbers to
    add), `strict` (without those that /etc/group lists). Raise ValueError for an unknown name, an invalid
    number, and a file that is not regular or has more than MOST bytes.
    """
    user, group = wanted["user"] or "0", wanted["group"]
    name, uid, gid, home = user, -1, 0, "/"
    for fields in _lines("/etc/passwd", 6):
        found, group_found = _number(fields[2]), _number(fields[3])
        if found < 0 or group_found < 0:
            continue
        if fields[0] == user or fields[2] == user:
            name, uid, gid, home = fields[0], found, group_found, fields[5] or "/"
            break
    if uid < 0:
        uid = _number(user)
        if uid < 0:
            raise ValueError(f"unable to find user {user}: no matching entries in passwd file")
    entries = [fields for fields in _lines("/etc/group", 4) if _number(fields[2]) >= 0]
    if group:
        gid = next((_number(fields[2]) for fields in entries if fields[0] == group), _number(group))
        if gid < 0:
            raise ValueError(f"unable to find group {group}: no matching entries in group file")
    groups = {gid, *wanted["groups"]}
    if not wanted["strict"]:
        groups |= {_number(fields[2]) for fields in entries if name in fields[3].split(",")}
    return Identity(uid, gid, sorted(groups), home)


def give(fd: int, identity: Identity) -> None:
    """Make the user the owner of an open file. Raise OSError for a user that the user namespace lacks."""
    try:
        os.fchown(fd, identity.uid, -1)
    except OSError as error:
        raise _explained(error, identity) from None


def become(
    identity: Identity,
    *,
    keep: Collection[str],
    ambient: Collection[str],
    no_new_privs: bool,
    system_calls: bytes,
) -> None:
    """Drop to `identity` with at most the capabilities `keep` (names without CAP_).

    `system_calls` is a filter program, empty for none. It is installed last if possible: a process that may
    still gain privileges needs CAP_SYS_ADMIN for it, so there it is installed before that capability is
    dropped.
    """
    kept = {NUMBER[name] for name in keep if name in NUMBER}
    raised = {NUMBER[name] for name in ambient if name in NUMBER} & kept
    number = 0
    while True:
        try:
            held = linux.prctl(linux.PR_CAPBSET_READ, number)
        except OSError:
            break
        if held and number not in kept:
            linux.prctl(linux.PR_CAPBSET_DROP, number)
        elif not held:
            kept.discard(number)
            raised.discard(number)
        number += 1
    if system_calls and not no_new_privs:
        linux.install_filter(system_calls)
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    _change_user(identity)
    linux.prctl(linux.PR_SET_KEEPCAPS, 0)
    linux.hide()  # again, because a change of user may have reset it
    linux.capset(permitted=kept, inheritable=raised)
    linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in raised:
        linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_RAISE, capability)
    if no_new_privs:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        if system_calls:
            linux.install_filter(system_calls)


def _change_user(identity: Identity) -> None:
    try:
        os.setgroups(identity.groups)
    except PermissionError:
        # An unprivileged user may map itself only after giving up setgroups(2) (user_namespaces(7)).
        if not linux.IN_USER_NAMESPACE:
            raise
    try:
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    except OSError as error:
        raise _explained(error, identity) from None


def _explained(error: OSError, identity: Identity) -> OSError:
    if error.errno != errno.EINVAL:
        return error
    ids = f"user {identity.uid}, group {identity.gid}"
    return OSError(error.errno, f"{ids}: not mapped in the runtime's user namespace")


def _lines(path: str, fields: int) -> list[list[str]]:
    """Return the lines with that many fields; none if there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path}: not a regular file")
    with open(fd, "rb") as file:
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"{path}: more than {MOST} bytes")
    lines = (line.split(":") for line in data.decode("utf-8", "replace").split("\n"))
    return [parts for parts in lines if len(parts) >= fields]


def _number(text: str) -> int:
    """Return a user's or group's number, -1 for an invalid one."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return -1
    number = int(text)
    return number if number < NOBODY_AT_ALL else -1
