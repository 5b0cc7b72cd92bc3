"""An ordinary user in a subtree of cgroup v2 that was delegated to it. Each scene returns what it saw.

Everything is imported before, since the user may not read every directory of the interpreter.
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
    given = top / name
    given.mkdir()
    (top / "cgroup.subtree_control").write_text("+cpu +memory +pids")
    for path in (given, *(given / file for file in ("cgroup.procs", "cgroup.subtree_control"))):
        os.chown(path, USER, USER)
    (given / "agent").mkdir()
    for file in ("", "cgroup.procs", "cgroup.subtree_control"):
        os.chown(given / "agent" / file, USER, USER)
    return given


def become_user(given: Path) -> None:
    (given / "agent" / "cgroup.procs").write_text("0")
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def refusals(given: Path) -> list[str]:
    """What an ordinary user hears about cgroups that are not its own, and about one with processes in it."""
    heard = []
    for directory in (given.parent, given / "agent"):
        try:
            delegated_mounts(str(directory))
        except Refused as error:
            heard.append(str(error))
    return heard


def whole(given: Path) -> dict[str, Any]:
    """Pods get their groups and values, are ranked by use, and BestEffort ones are squeezed."""
    manager = CgroupManager(
        config=KubeletConfiguration(eviction_hard={}),
        section=CgroupsSection(cpu_weight="linear", best_effort_ceiling=80),
        capacity={"cpu": 2000, "memory": 256 * MI, "pid": 1000},
        mounts=delegated_mounts(str(given)),
    )
    manager.start()
    try:
        return _seen(manager, given)
    finally:
        manager.remove_all(kill=True, wait=5.0)
        manager.stop()


def _seen(manager: CgroupManager, given: Path) -> dict[str, Any]:
    pods = [guaranteed("steady", "500m", "64Mi"), burstable("greedy", "100m", "8Mi"), best_effort("idle")]
    seen: dict[str, Any] = {"uid": os.getuid(), "controllers": sorted(manager.mounts.controllers)}
    for pod in pods:
        manager.create_pod(pod)
    spawn_holder(manager, make_container(manager, pods[0]), 16 * MI)
    spawn_holder(manager, make_container(manager, pods[1]), 24 * MI)
    steady = given / "kubepods" / "podsteady"
    seen["limit"] = (steady / "memory.max").read_text().strip()
    seen["weight"] = (steady / "cpu.weight").read_text().strip()
    paths = {pod.full_name: manager.pod_path(pod.uid) for pod in pods}
    usage = {name: int(Path(f"{given}{path}", "memory.current").read_text()) for name, path in paths.items()}
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
