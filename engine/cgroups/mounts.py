"""Finds the cgroup hierarchies of this machine: v1, v2 or both (hybrid).

A hybrid machine counts as v1, because that is where its controllers are.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.api.errors import Refused, Unavailable
from engine.cgroups.refusals import read_refused
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


@dataclass(frozen=True, slots=True)
class CgroupHierarchy:
    """One mounted hierarchy and its controllers. A v1 `name=…` hierarchy and a hybrid's v2
    hierarchy have none.
    """

    path: str
    controllers: frozenset[str]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Mounts:
    """The hierarchies in use; `bare` is a hybrid's v2 mount, where cgroups are only removed."""

    version: Literal[1, 2]
    hierarchies: tuple[CgroupHierarchy, ...]
    bare: str | None = None

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset().union(*(h.controllers for h in self.hierarchies))

    @property
    def lacking(self) -> list[str]:
        """The missing controllers without which some values are not enforced."""
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


def _choose(mounts: list[Mounted]) -> Mounts:
    legacy: dict[frozenset[str], CgroupHierarchy] = {}
    unified: CgroupHierarchy | None = None
    for mount in mounts:
        path, options = mount.point, mount.options
        read_only = "ro" in options
        if mount.kind == "cgroup2":
            unified = unified or CgroupHierarchy(path, frozenset(_controllers(path)), read_only)
        else:
            named = frozenset(option for option in options if option.startswith("name="))
            controllers = options & V1_CONTROLLERS
            legacy.setdefault(controllers or named, CgroupHierarchy(path, controllers, read_only))
    if any(h.controllers for h in legacy.values()):
        return Mounts(1, tuple(legacy.values()), bare=unified.path if unified else None)
    if unified is None:
        raise Unavailable("only named cgroup hierarchies, without controllers", subject=mounts[0].point)
    return Mounts(2, (unified,))


def _controllers(path: str) -> list[str]:
    try:
        return Path(path, "cgroup.controllers").read_text().split()
    except OSError as error:
        raise read_refused(error, os.path.join(path, "cgroup.controllers")) from error  # noqa: PTH118
