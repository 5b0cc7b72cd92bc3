"""What must hold on a cgroup v2 kernel; run inside one by `test_cgroup_v2`, it returns what it saw."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.host.cgroupfs.mounts import find_mounts
from tests.contexts import node_context
from tests.eviction.private_node import MIB, PrivateNode, make_pod
from tests.waiting import eventually


async def pressure_on_v2(mount: Path, directory: Path) -> dict[str, Any]:
    """Memory above the threshold evicts the larger pod; a later burst wakes the manager by
    `memory.events.local`, with an interval far longer than the test."""
    node = PrivateNode("/eviction", find_mounts(str(mount)))
    (mount / "eviction" / "memory.high").write_text(str(120 * MIB))
    node.run(make_pod("small"), mib=20)
    node.run(make_pod("large"), mib=60)
    manager = EvictionManager(
        node_context(
            KubeletConfiguration(
                eviction_hard={"memory.available": "130Mi", "pid.available": "5"},
                eviction_pressure_transition_period=Duration(1e-9),
            ),
            eviction=EvictionSection(interval=Duration(600)),
            recorder=EventRecorder(time.time),
            root=directory,
        ),
        EvictablePods(active=node.active_pods, kill=node.kill_pod, cgroup=node.pod_cgroup),
        view=NodeView("/eviction", memory_capacity=200 * MIB, pid_capacity=100, mounts=node.mounts),
    )
    before = manager.reader.read(0.0)
    await manager.start()
    await eventually(lambda: len(node.ended) == 1)
    await asyncio.sleep(1.5)
    await asyncio.to_thread(node.run, make_pod("burst"), mib=130)
    await eventually(lambda: len(node.ended) == 2)
    await manager.stop()
    node.close()
    return {
        "used_mib": 200 - before["memory.available"].available // MIB,
        "tasks": 100 - before["pid.available"].available,
        "ended": [name for name, _end in node.ended],
    }
