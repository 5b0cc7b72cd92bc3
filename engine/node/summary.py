"""`/stats/summary`: what the node and its pods use, in the kubelet's shape, from the runtime's statistics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.api.moments import rfc3339
from engine.node.machine import existing_parent, memory_available, memory_total
from engine.wire import cri_v1_pb2 as cri

_CPU: Final = {
    "usage_nano_cores": "usageNanoCores",
    "usage_core_nano_seconds": "usageCoreNanoSeconds",
}
_MEMORY: Final = {
    "available_bytes": "availableBytes",
    "usage_bytes": "usageBytes",
    "working_set_bytes": "workingSetBytes",
    "rss_bytes": "rssBytes",
    "page_faults": "pageFaults",
    "major_page_faults": "majorPageFaults",
}


def node_summary(name: str, root: Path, started_at: float, now: float) -> dict[str, Any]:
    """The node's own part: memory of the machine and the file system of the root directory."""
    total = memory_total()
    available = memory_available()
    disk = os.statvfs(existing_parent(root))
    time = rfc3339(now)
    return {
        "nodeName": name,
        "startTime": rfc3339(started_at),
        "memory": {
            "time": time,
            "availableBytes": available,
            "usageBytes": total - available,
            "workingSetBytes": total - available,
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


def pod_summary(stats: cri.PodSandboxStats) -> dict[str, Any]:
    """One pod from its sandbox's statistics, without what the runtime did not read."""
    meta, linux = stats.attributes.metadata, stats.linux
    shown: dict[str, Any] = {"podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}}
    shown |= _usage(linux)
    if linux.HasField("process"):
        shown["process_stats"] = {"process_count": linux.process.process_count.value}
    shown["containers"] = [_container(container) for container in linux.containers]
    return shown


def _container(stats: cri.ContainerStats) -> dict[str, Any]:
    shown = {"name": stats.attributes.metadata.name, **_usage(stats)}
    if stats.HasField("writable_layer"):
        layer = stats.writable_layer
        shown["rootfs"] = {
            "time": rfc3339(layer.timestamp / 1e9),
            **_values(layer, {"used_bytes": "usedBytes", "inodes_used": "inodesUsed"}),
        }
    return shown


def _usage(stats: cri.LinuxPodSandboxStats | cri.ContainerStats) -> dict[str, Any]:
    shown = {}
    if stats.HasField("cpu"):
        shown["cpu"] = {"time": rfc3339(stats.cpu.timestamp / 1e9), **_values(stats.cpu, _CPU)}
    if stats.HasField("memory"):
        shown["memory"] = {"time": rfc3339(stats.memory.timestamp / 1e9), **_values(stats.memory, _MEMORY)}
    return shown


def _values(message: Any, names: Mapping[str, str]) -> dict[str, int]:
    return {shown: getattr(message, name).value for name, shown in names.items() if message.HasField(name)}
