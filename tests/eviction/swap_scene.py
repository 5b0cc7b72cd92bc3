"""Evict a pod that was swapped out, inside a kernel with swap (see `test_swap`)."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.api.pod import Pod
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.host.cgroupfs.mounts import find_mounts
from engine.metrics import Registry
from tests.contexts import node_context
from tests.eviction.private_node import MIB, PrivateNode, make_pod
from tests.waiting import eventually

CAPACITY = 200 * MIB


def swap_on(disk: Path) -> None:
    os.mknod(disk, 0o600 | stat.S_IFBLK, os.makedev(98, 0))
    subprocess.run(["mkswap", disk], check=True, capture_output=True)
    subprocess.run(["swapon", disk], check=True)


async def rankings_and_evictions(mount: Path, scratch: Path) -> dict[str, Any]:
    """Return the rankings and evictions by managers with and without `countSwap`.

    One pod holds 90 MiB, most of it swapped out, its neighbour 40 MiB in memory. The available memory is
    below the threshold, and above it with the swap that pods may still use. Then the pod may not use
    further swap.
    """
    swap_on(scratch / "swap")
    node = PrivateNode("/swap", find_mounts(str(mount)))
    node.run(make_pod("swapped"), mib=90)
    node.run(make_pod("beside"), mib=40)
    pods = {pod.metadata.name: pod for pod in node.active_pods()}
    group = mount / "swap" / f"pod{pods['swapped'].uid}"
    (group / "memory.high").write_text(str(20 * MIB))
    await eventually(lambda: int((group / "memory.swap.current").read_text()) >= 60 * MIB)
    limits = {"swapped": 120 * MIB, "beside": 0}

    decisions, registry = Decisions(time.time), Registry()

    def manager(count: bool) -> EvictionManager:
        return EvictionManager(
            node_context(
                KubeletConfiguration(eviction_hard={"memory.available": "150Mi"}),
                eviction=EvictionSection(count_swap=count),
                recorder=EventRecorder(time.time),
                root=scratch,
                registry=registry if count else None,
                decisions=decisions,
            ),
            EvictablePods(
                active=node.active_pods,
                kill=node.kill_pod,
                cgroup=node.pod_cgroup,
                swap_limit=lambda pod: limits[pod.metadata.name],
            ),
            view=NodeView("/swap", memory_capacity=CAPACITY, pid_capacity=1000, mounts=node.mounts),
        )

    def names(ranked: list[tuple[Pod, int | None]]) -> list[str]:
        return [pod.metadata.name for pod, _ in ranked]

    plain, counting = manager(count=False), manager(count=True)
    active = node.active_pods()
    seen: dict[str, Any] = {
        "swapped out": int((group / "memory.swap.current").read_text()),
        "available": [one.reader.read(0.0)["memory.available"].available // MIB for one in (plain, counting)],
        "first": [names(await one.ranking("memory.available", active))[0] for one in (plain, counting)],
    }
    (gauge,) = registry.metrics["kubengine_memory_available_swap_bytes"].collect()
    seen["metric"] = gauge[1] // MIB
    await counting.synchronize()
    seen["with swap left"] = [name for name, _ in node.ended]
    limits["swapped"] = 0
    await counting.synchronize()
    seen["with none"] = [name for name, _ in node.ended]
    seen["decided"] = [each.inputs.get("countSwap") for each in decisions.after(0)]
    for one in (plain, counting):
        await one.stop()
    node.close()
    return seen
