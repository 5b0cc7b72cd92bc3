"""Describe directories that are laid out like /sys/fs/cgroup, for the readers of cgroups."""

from __future__ import annotations

from pathlib import Path

from engine.host.cgroupfs.mounts import V1_CONTROLLERS, CgroupHierarchy, Mounts


def laid_out(top: Path) -> Mounts:
    """Return v1 hierarchies if there is a directory for memory, else one of v2."""
    if not (top / "memory").is_dir():
        return Mounts(2, (CgroupHierarchy(str(top), V1_CONTROLLERS),))
    return Mounts(1, tuple(CgroupHierarchy(str(top / each), frozenset([each])) for each in V1_CONTROLLERS))
