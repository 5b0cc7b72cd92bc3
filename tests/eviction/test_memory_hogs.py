"""A pod takes memory until somebody has to go: it goes, and no other. Real processes in real cgroups with the
scores of the kubelet, on a node with no more memory than its limit: the kernel kills where the agent is late.
`KUBENGINE_MEMORY_HOGS=100` runs so many, each another by its number; `KUBENGINE_CRASH_SEED` is the first."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.api.pod import Pod, ResourceRequirements
from engine.api.quantity import Quantity
from engine.cgroups.formulas.containers import oom_score_adj
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.host.cgroupfs.mounts import readable_mounts
from tests.contexts import node_context
from tests.eviction.private_node import MIB, PrivateNode, make_pod
from tests.waiting import eventually

RUNS = int(os.environ.get("KUBENGINE_MEMORY_HOGS", "2"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
CAPACITY, THRESHOLD = 240 * MIB, 48 * MIB
CALM = 3

_GROW = """
import os, sys, time
step, pause, processes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
for _ in range(processes - 1):
    if os.fork() == 0:
        break
held = []
while True:
    block = bytearray(step)
    for at in range(0, step, 4096):
        block[at] = 1
    held.append(block)
    time.sleep(pause)
"""
_HOLD = """
import sys, time
block = bytearray(int(sys.argv[1]))
for at in range(0, len(block), 4096):
    block[at] = 1
print("ready", flush=True)
time.sleep(3600)
"""

log = logging.getLogger(__name__)

pytestmark = pytest.mark.root


def with_memory(pod: Pod, memory: int) -> Pod:
    """Return the pod with this memory as request and as limit, as a Guaranteed pod has it."""
    amounts = {"memory": Quantity.from_value(memory), "cpu": Quantity.parse("100m")}
    (container,) = pod.spec.containers
    resources = ResourceRequirements(requests=amounts, limits=amounts)
    container = msgspec.structs.replace(container, resources=resources)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[container]))


def score(pod: Pod) -> int:
    """Return the kubelet's oom_score_adj, at least 0: lower values need a capability that not every machine
    gives."""
    return max(oom_score_adj(pod, pod.spec.containers[0], CAPACITY), 0)


async def one_run(number: int, cgroup: str, directory: Path) -> str:
    """Run one memory hog, and return how it ended: `evicted`, or `killed` by the kernel."""
    chance = random.Random(number)
    node = PrivateNode(cgroup)
    mounts = readable_mounts()
    group = mounts.directory("memory", cgroup)
    limit = "memory.limit_in_bytes" if mounts.version == 1 else "memory.max"
    (group / limit).write_text(str(CAPACITY))
    calm = []
    for place in range(CALM):
        uses = chance.randint(4, 24) * MIB
        pod = make_pod(f"calm{place}", priority=chance.choice([None, 0, 1000]))
        if chance.random() < 0.5:
            pod = with_memory(pod, uses + 16 * MIB)
        else:
            pod = make_pod(
                f"calm{place}", memory_request=str(uses + 16 * MIB), priority=chance.choice([None, 0, 1000])
            )
        process = node.start(pod, _HOLD, str(uses), oom_score_adj=score(pod))
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()
        calm.append(process)
    hog = make_pod("hog", memory_request=chance.choice(["", "", "8Mi"]), priority=chance.choice([None, 2000]))
    decisions = Decisions(time.time)
    manager = EvictionManager(
        node_context(
            KubeletConfiguration(eviction_hard={"memory.available": str(THRESHOLD)}),
            eviction=EvictionSection(),
            recorder=EventRecorder(time.time),
            decisions=decisions,
            root=directory,
        ),
        EvictablePods(active=node.active_pods, kill=node.kill_pod, cgroup=node.pod_cgroup),
        view=NodeView(cgroup, memory_capacity=CAPACITY, pid_capacity=10_000),
    )
    await manager.start()
    step, pause = chance.randint(1, 16) * MIB, chance.choice([0.0, 0.01, 0.05])
    processes = chance.choice([1, 1, 3])
    growing = node.start(hog, _GROW, str(step), str(pause), str(processes), oom_score_adj=score(hog))
    assert growing.stdout is not None
    growing.stdout.close()
    procs = group / f"pod{hog.uid}" / "cgroup.procs"
    try:
        await eventually(lambda: node.ended or (growing.poll() is not None and not procs.read_text()))
    finally:
        await manager.stop()
        alive = [process.poll() is None for process in calm]
        node.close()
    assert alive == [True] * CALM, f"run {number}: {alive}"
    assert [name for name, _ in node.ended] in (["hog"], []), f"run {number}"
    return "evicted" if node.ended else "killed"


async def test_no_innocent_pod_dies(tmp_path: Path, private_cgroup_root: str):
    ends: Counter[str] = Counter()
    for number in range(SEED, SEED + RUNS):
        ends[await one_run(number, f"{private_cgroup_root}/{number}", tmp_path)] += 1
    log.info("%d memory hogs: %s", RUNS, dict(ends))
    assert ends.total() == RUNS
