"""Words the kernel's refusals: one error with the path and what to do about it."""

from __future__ import annotations

import errno
import os

from engine.api.errors import Refused

_MEANINGS = {
    errno.EACCES: "no permission; run as root or delegate this subtree",
    errno.EPERM: "not permitted; run as root or delegate this subtree",
    errno.EROFS: "the cgroup file system is mounted read-only; remount it read-write",
    errno.ENOSPC: (
        "no further groups are allowed: cgroup.max.descendants is reached, or the parent's cpuset is empty"
    ),
    errno.EMFILE: "too many open files; raise the limit on descriptors",
    errno.ENODEV: "the group is being removed",
    errno.ENOMEM: "the kernel is out of memory",
}
_WRITES = {
    errno.EBUSY: "the kernel refuses it now: memory in use is above the value, or the group is in use",
    errno.EINVAL: "the kernel rejects this value here (a child's limit may not exceed its parent's)",
    errno.ENOENT: "no such file: the group is gone, or its controller is missing or not enabled",
    errno.EOPNOTSUPP: "not possible in a threaded subtree",
    errno.ERANGE: "out of the range that the kernel accepts",
}
_ENABLING = {
    errno.EBUSY: "the group holds processes of its own, so it cannot pass controllers on to children; "
    "move them into a child group",
    errno.ENOENT: "the parent does not offer this controller",
    errno.EOPNOTSUPP: "the group is threaded or in a threaded subtree",
}
_REMOVING = {
    errno.EBUSY: "processes or child groups are left in it",
    errno.ENOTEMPTY: "child groups are left in it",
}
_MAKING = {
    errno.ENOENT: "the parent group is gone",
    errno.EOPNOTSUPP: "the parent is a threaded or invalid group",
    errno.EAGAIN: "cgroup.max.depth or cgroup.max.descendants is reached",
}


def _refused(error: OSError, path: str, doing: str, meanings: dict[int, str]) -> Refused:
    code = error.errno or 0
    meaning = meanings.get(code) or _MEANINGS.get(code) or os.strerror(code)
    name = errno.errorcode.get(code, str(code))
    return Refused(f"{doing}: {meaning} ({name})", subject=path, errno=code)


def write_refused(error: OSError, path: str, text: str) -> Refused:
    return _refused(error, path, f"cannot write {text!r}", _WRITES)


def read_refused(error: OSError, path: str) -> Refused:
    return _refused(error, path, "cannot read", _WRITES)


def enable_refused(error: OSError, path: str, controller: str) -> Refused:
    return _refused(error, path, f"cannot enable the {controller} controller", _ENABLING)


def make_refused(error: OSError, path: str) -> Refused:
    return _refused(error, path, "cannot create the group", _MAKING)


def remove_refused(error: OSError, path: str) -> Refused:
    return _refused(error, path, "cannot remove the group", _REMOVING)
