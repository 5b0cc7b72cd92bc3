"""Run as an ordinary user in a delegated subtree of cgroup v2. Each scene returns its observations.

All modules are imported first, since the user may not read every directory of the interpreter.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from cgroup_scenes import best_effort, burstable, guaranteed, make_container, spawn, spawn_holder, spin

from engine import rank
from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.errors import Refused
from engine.api.kubengine_config import CgroupsSection
from engine.api.qos import BEST_EFFORT
from engine.cgroups.best_effort_limiter import BestEffortLimiter
from engine.cgroups.manager import CgroupManager
from engine.host.cgroupfs.mounts import delegated_mounts
from engine.host.tasks import Tasks

USER = 1000
MI = 1 << 20


def delegate(top: Path, name: str = "user") -> Path:
    """Do what systemd does for a user's service with `Delegate=yes`: cpu, memory and pids, no others."""
    delegated = top / name
    delegated.mkdir()
    (top / "cgroup.subtree_control").write_text("+cpu +memory +pids")
    for path in (delegated, *(delegated / file for file in ("cgroup.procs", "cgroup.subtree_control"))):
        os.chown(path, USER, USER)
    (delegated / "agent").mkdir()
    for file in ("", "cgroup.procs", "cgroup.subtree_control"):
        os.chown(delegated / "agent" / file, USER, USER)
    return delegated


def become_user(delegated: Path) -> None:
    (delegated / "agent" / "cgroup.procs").write_text("0")
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def refusals(delegated: Path) -> list[str]:
    """Return the refusals of a cgroup that is not the user's own, and of one that holds a process."""
    messages = []
    for directory in (delegated.parent, delegated / "agent"):
        try:
            delegated_mounts(str(directory))
        except Refused as error:
            messages.append(str(error))
    return messages


def manage_pods(delegated: Path) -> dict[str, Any]:
    """Return the values of pods, the first victim by use, and the BestEffort ceiling, as a manager without
    root sets them."""
    manager = CgroupManager(
        config=KubeletConfiguration(eviction_hard={}),
        section=CgroupsSection(cpu_weight="linear", best_effort_ceiling=80),
        capacity={"cpu": 2000, "memory": 256 * MI, "pid": 1000},
        mounts=delegated_mounts(str(delegated)),
    )
    manager.start()
    try:
        return _seen(manager, delegated)
    finally:
        manager.remove_all(kill=True, wait=5.0)
        manager.stop()


def _seen(manager: CgroupManager, delegated: Path) -> dict[str, Any]:
    pods = [guaranteed("steady", "500m", "64Mi"), burstable("greedy", "100m", "8Mi"), best_effort("idle")]
    seen: dict[str, Any] = {"uid": os.getuid(), "controllers": sorted(manager.mounts.controllers)}
    for pod in pods:
        manager.create_pod(pod)
    spawn_holder(manager, make_container(manager, pods[0]), 16 * MI)
    spawn_holder(manager, make_container(manager, pods[1]), 24 * MI)
    steady = delegated / "kubepods" / "podsteady"
    seen["limit"] = (steady / "memory.max").read_text().strip()
    seen["weight"] = (steady / "cpu.weight").read_text().strip()
    paths = {pod.full_name: manager.pod_path(pod.uid) for pod in pods}
    usage = {
        name: int(Path(f"{delegated}{path}", "memory.current").read_text()) for name, path in paths.items()
    }
    seen["first victim"] = rank(pods, usage)[0].pod
    spawn(manager, make_container(manager, pods[2]), spin)
    rules = manager.settings.best_effort_limit
    assert rules is not None
    limiter = BestEffortLimiter(
        manager,
        rules,
        decisions=Decisions(time.time),
        tasks=Tasks(),
        busy=lambda: 2 * time.monotonic(),  # all workloads use both processors
        monotonic=time.monotonic,
    )
    for _ in range(4):
        time.sleep(0.2)
        limiter.update()
    level = manager.levels.names[BEST_EFFORT]
    seen["ceiling"] = limiter.ceiling
    seen["quota"] = (manager.tree.read(level, "cpu.max") or "").split()[0]
    return seen
