"""What saved-up quota is worth: the same work at the same pace under the same CPU limit, with `cpu-burst` and
without.

`pytest bench/bench_burst.py -s`. Each pod has 200m and does 35 ms of work every 400 ms: less than half of its
limit, and more than one period's quota at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cgroups.manager import CgroupManager

SECONDS = 60
WORKS = """
import sys, time
every, work, seconds = map(float, sys.argv[1:])
lasted, begun = [], time.monotonic()
for number in range(int(seconds / every)):
    time.sleep(max(begun + number * every - time.monotonic(), 0))
    began, until = time.monotonic(), time.thread_time() + work
    while time.thread_time() < until:
        pass
    lasted.append(time.monotonic() - began)
print(time.process_time(), sorted(lasted)[len(lasted) // 2])
"""


def limited(uid: str, **annotations: str) -> Pod:
    resources = {"cpu": "200m", "memory": "64Mi"}
    document = {
        "metadata": {"name": uid, "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": resources}}]},
    }
    return msgspec.convert(document, Pod, dec_hook=decode_hook, strict=False)


def working(manager: CgroupManager, pod: Pod) -> subprocess.Popen[bytes]:
    """Start a process in the pod's cgroup that works as the module describes."""
    manager.create_pod(pod)
    path = manager.tree.group(manager.pods.name(pod)).path
    groups = [Path(f"{hierarchy.path}{path}/cgroup.procs") for hierarchy in manager.mounts.hierarchies]

    def enter() -> None:
        for group in groups:
            group.write_text(str(os.getpid()))

    arguments = [sys.executable, "-c", WORKS, "0.4", "0.035", str(SECONDS)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, preexec_fn=enter)  # noqa: PLW1509


def test_throttled_periods_with_and_without_burst() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: cgroups")
    manager = CgroupManager(
        config=KubeletConfiguration(cgroup_root=f"/kubengine-bench-{uuid.uuid4().hex[:8]}", eviction_hard={}),
        section=CgroupsSection(pod_annotations=["cpu-burst"]),
        capacity={"cpu": 1000 * (os.cpu_count() or 1), "memory": 1 << 30, "pid": 1000},
    )
    manager.start()
    share = {1: {"cpu.shares": "262144"}, 2: {"cpu.weight": "10000"}}[manager.mounts.version]
    manager.tree.write_files(manager.settings.root[:1], share)  # other processes here are not measured
    pods = {"plain": limited("plain"), "saving": limited("saving", **{"kubengine.dev/cpu-burst": "100%"})}
    try:
        processes = {uid: working(manager, pod) for uid, pod in pods.items()}
        for uid, process in processes.items():
            cpu, lasted = map(float, process.communicate()[0].split())
            stat = manager.tree.read(manager.pods.name(pods[uid]), "cpu.stat") or ""
            counts = dict(line.split() for line in stat.splitlines())
            print(
                f"\n{uid}: {cpu / SECONDS:.3f} cores, {counts['nr_throttled']} of {counts['nr_periods']} "
                f"periods throttled, {counts.get('nr_bursts', 0)} bursts, 35 ms took {lasted * 1e3:.0f} ms"
            )
    finally:
        manager.remove_all(kill=True, wait=5.0)
        manager.stop()
