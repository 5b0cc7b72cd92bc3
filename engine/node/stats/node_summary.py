"""Builds the node's part of the kubelet's Summary from the machine alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine.api.moments import rfc3339
from engine.node.nodeinfo.machine import existing_parent, memory_total


def node_summary(
    name: str, root: Path, started_at: float, now: float, memory: tuple[int, int]
) -> dict[str, Any]:
    """Return memory of the machine and the file system of the root directory.

    `memory` is what is in use and its working set, in bytes.
    """
    used, working_set = memory
    disk = os.statvfs(existing_parent(root))
    time = rfc3339(now)
    return {
        "nodeName": name,
        "startTime": rfc3339(started_at),
        "memory": {
            "time": time,
            "availableBytes": memory_total() - working_set,
            "usageBytes": used,
            "workingSetBytes": working_set,
        },
        "fs": {
            "time": time,
            "availableBytes": disk.f_bavail * disk.f_frsize,
            "capacityBytes": disk.f_blocks * disk.f_frsize,
            "usedBytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            "inodesFree": disk.f_favail,
            "inodes": disk.f_files,
            "inodesUsed": disk.f_files - disk.f_ffree,
        },
    }
