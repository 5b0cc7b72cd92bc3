"""`/stats/summary`: what the node and its pods use, in the kubelet's shape, from the runtime's statistics."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.node.machine import existing_parent, memory_available, memory_total
from engine.wire import cri_v1_pb2 as cri


def node_summary(name: str, root: Path, started_at: float, now: float) -> dict[str, Any]:
    """The node's own part: memory of the machine and the file system of the root directory."""
    total = memory_total()
    available = memory_available()
    disk = os.statvfs(existing_parent(root))
    time = _time(now)
    return {
        "nodeName": name,
        "startTime": _time(started_at),
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
    """One pod from its sandbox's statistics."""
    meta, linux = stats.attributes.metadata, stats.linux
    return {
        "podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "cpu": _cpu(linux.cpu),
        "memory": _memory(linux.memory),
        "process_stats": {"process_count": linux.process.process_count.value},
        "containers": [_container(container) for container in linux.containers],
    }


def _container(stats: cri.ContainerStats) -> dict[str, Any]:
    layer = stats.writable_layer
    return {
        "name": stats.attributes.metadata.name,
        "cpu": _cpu(stats.cpu),
        "memory": _memory(stats.memory),
        "rootfs": {
            "time": _time(layer.timestamp / 1e9),
            "usedBytes": layer.used_bytes.value,
            "inodesUsed": layer.inodes_used.value,
        },
    }


def _cpu(usage: cri.CpuUsage) -> dict[str, Any]:
    return {
        "time": _time(usage.timestamp / 1e9),
        "usageNanoCores": usage.usage_nano_cores.value,
        "usageCoreNanoSeconds": usage.usage_core_nano_seconds.value,
    }


def _memory(usage: cri.MemoryUsage) -> dict[str, Any]:
    return {
        "time": _time(usage.timestamp / 1e9),
        "usageBytes": usage.usage_bytes.value,
        "workingSetBytes": usage.working_set_bytes.value,
        "rssBytes": usage.rss_bytes.value,
        "pageFaults": usage.page_faults.value,
        "majorPageFaults": usage.major_page_faults.value,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
