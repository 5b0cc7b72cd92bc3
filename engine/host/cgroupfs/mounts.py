"""Finds the cgroup hierarchies of this machine: v1, v2 or both (hybrid).

A hybrid machine counts as v1, because that is where its controllers are.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

import msgspec

from engine.api.errors import Refused, Unavailable
from engine.host.cgroupfs.refusals import read_refused
from engine.host.mountinfo import MOUNTINFO, Mounted, reachable

REQUIRED = ("cpu", "memory")
WANTED = ("pids", "cpuset")
DEFAULT_ROOT = "/sys/fs/cgroup"
V1_CONTROLLERS = frozenset(
    [
        *("cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "blkio"),
        *("devices", "freezer", "net_cls", "net_prio", "perf_event", "rdma", "misc"),
    ]
)


class CgroupHierarchy(msgspec.Struct, frozen=True):
    """Describe one mounted hierarchy and its controllers.

    A v1 hierarchy mounted with `name=…` and the v2 hierarchy of a hybrid have no controllers; `name` is the
    option of the first, "" for the others.
    """

    path: str
    controllers: frozenset[str]
    read_only: bool = False
    name: str = ""


class Mounts(msgspec.Struct, frozen=True):
    """Hold the hierarchies in use; `bare` is a hybrid's v2 mount, where cgroups are only removed."""

    version: Literal[1, 2]
    hierarchies: tuple[CgroupHierarchy, ...]
    bare: str | None = None

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset().union(*(h.controllers for h in self.hierarchies))

    @property
    def lacking(self) -> list[str]:
        """Return the missing controllers without which some values are not enforced."""
        return [controller for controller in WANTED if controller not in self.controllers]

    def check_usable(self) -> None:
        """Raise `Refused` for a read-only mount, or a missing controller without which pods cannot run."""
        for hierarchy in self.hierarchies:
            if hierarchy.read_only:
                raise Refused(
                    "the cgroup file system is mounted read-only; remount it read-write",
                    subject=hierarchy.path,
                    errno=errno.EROFS,
                )
        missing = [controller for controller in REQUIRED if controller not in self.controllers]
        if missing:
            raise Refused(
                f"the {' and '.join(missing)} controller is missing; enable it on the kernel command "
                "line, or run without cgroups (cgroupsPerQOS: false)",
                subject=self.hierarchies[0].path if self.version == 2 else "/proc/cgroups",
                errno=errno.ENOENT,
            )

    def holding(self, controller: str) -> CgroupHierarchy | None:
        return next((h for h in self.hierarchies if controller in h.controllers), None)

    def directory(self, controller: str, cgroup: str = "/") -> Path:
        """Return the directory of a cgroup (`/kubepods/pod1`) in the hierarchy of a controller.

        On v2 there is one hierarchy for all. The directory of a v1 controller that is not mounted does not
        exist.
        """
        hierarchy = self.hierarchies[0] if self.version == 2 else self.holding(controller)
        top = hierarchy.path if hierarchy is not None else f"{DEFAULT_ROOT}/{controller}"
        return Path(top, cgroup.strip("/"))


def find_mounts(root: str | None = None, mountinfo: str = MOUNTINFO) -> Mounts:
    """Return the hierarchies at or below `root`; without one, below /sys/fs/cgroup, or else anywhere.

    Raises `Unavailable` if there are none.
    """
    try:
        mounts = reachable(("cgroup", "cgroup2"), mountinfo)
    except OSError as error:
        raise read_refused(error, mountinfo) from error
    base = (root or DEFAULT_ROOT).rstrip("/")
    below = [m for m in mounts if m.point == base or m.point.startswith(base + "/")]
    chosen = below if below or root is not None else mounts
    if not chosen:
        raise Unavailable("no cgroup hierarchy is mounted here", subject=base)
    return _choose(chosen)


def delegated_mounts(directory: str) -> Mounts:
    """Return the subtree of cgroup v2 below `directory` as if it were the whole hierarchy.

    For an ordinary user to whom systemd (`Delegate=yes`) or a container gave it: names are relative to it,
    only its controllers count, and nothing outside is changed. Raise `Refused` if the user may not write
    there, or if it holds processes: the kernel lets a cgroup have either processes or controlled children, so
    a program moves itself into a child first.
    """
    procs = os.path.join(directory, "cgroup.procs")
    try:
        members = Path(procs).read_text().split()
        controllers = _controllers(directory)
    except OSError as error:
        raise read_refused(error, procs) from error
    for path in (directory, procs, os.path.join(directory, "cgroup.subtree_control")):
        if not os.access(path, os.W_OK):
            raise Refused(
                "is not delegated to this user, who may not write it", subject=path, errno=errno.EACCES
            )
    if members:
        raise Refused(
            f"holds {len(members)} processes (the first is {members[0]}); move them into a child of it first",
            subject=directory,
            errno=errno.EBUSY,
        )
    return Mounts(2, (CgroupHierarchy(directory.rstrip("/"), frozenset(controllers)),))


def readable_mounts() -> Mounts:
    """Return the hierarchies of this machine, for callers that only read.

    Without any, every file is missing, as the files of a group that is gone are.
    """
    try:
        return find_mounts()
    except (Refused, Unavailable):
        return Mounts(2, (CgroupHierarchy(DEFAULT_ROOT, frozenset()),))


def _choose(mounts: list[Mounted]) -> Mounts:
    legacy: dict[frozenset[str], CgroupHierarchy] = {}
    unified: CgroupHierarchy | None = None
    for mount in mounts:
        path, options = mount.point, mount.options
        read_only = "ro" in options
        if mount.kind == "cgroup2":
            unified = unified or CgroupHierarchy(path, frozenset(_controllers(path)), read_only)
        else:
            controllers = options & V1_CONTROLLERS
            name = "" if controllers else ",".join(each for each in options if each.startswith("name="))
            hierarchy = CgroupHierarchy(path, controllers, read_only, name)
            legacy.setdefault(controllers or frozenset([name]), hierarchy)
    if any(h.controllers for h in legacy.values()):
        return Mounts(1, tuple(legacy.values()), bare=unified.path if unified else None)
    if unified is None:
        raise Unavailable("only named cgroup hierarchies, without controllers", subject=mounts[0].point)
    return Mounts(2, (unified,))


def _controllers(path: str) -> list[str]:
    try:
        return Path(path, "cgroup.controllers").read_text().split()
    except OSError as error:
        raise read_refused(error, os.path.join(path, "cgroup.controllers")) from error
