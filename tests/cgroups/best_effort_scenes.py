"""Limit BestEffort pods beside other pods on a real kernel.

Each scene takes a private cgroup root, and returns its observations as plain data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cgroup_scenes import best_effort, end, guaranteed, make_container, spawn, spin

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.errors import Refused
from engine.api.kubengine_config import CgroupsSection
from engine.api.qos import BEST_EFFORT
from engine.cgroups.best_effort_limiter import BestEffortLimiter
from engine.cgroups.formulas.file_names import CPU_IDLE
from engine.cgroups.interface_files import CPU_SHARE
from engine.cgroups.manager import CgroupManager
from engine.host.tasks import Tasks
from engine.metrics import Registry

QUOTA = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
WORKED = 0.05
"""CPU seconds that pods use between two updates."""
MOST_UPDATES = 100


def new_manager(root: str, registry: Registry | None = None, **section: Any) -> CgroupManager:
    return CgroupManager(
        config=KubeletConfiguration(cgroup_root=root, eviction_hard={}),
        section=CgroupsSection(cpu_weight="linear", **section),
        capacity={"cpu": 2000, "memory": 1 << 30, "pid": 1000},
        registry=registry,
    )


@contextmanager
def running(manager: CgroupManager) -> Iterator[CgroupManager]:
    manager.start()
    try:
        yield manager
    finally:
        manager.remove_all(kill=True, wait=5.0)
        manager.stop()


def quota(manager: CgroupManager) -> str:
    text = manager.tree.read(manager.levels.names[BEST_EFFORT], QUOTA[manager.mounts.version]) or ""
    return text.split()[0]


async def squeezed(root: str) -> dict[str, Any]:
    """Return how the ceiling of BestEffort pods falls while another pod works, and rises after that pod ends.

    A BestEffort pod spins beside a Guaranteed pod. The limiter's clock is their CPU time, so that a slow
    machine gives the same result.
    """
    decisions, registry = Decisions(time.time), Registry()
    with running(new_manager(root, registry, best_effort_ceiling=80)) as manager:
        name = manager.settings.root
        rules = manager.settings.best_effort_limit
        assert rules is not None
        limiter = BestEffortLimiter(
            manager,
            rules,
            decisions=decisions,
            tasks=Tasks(),
            busy=lambda: manager.cpu_seconds(name),
            monotonic=lambda: manager.cpu_seconds(name) / 2,
        )

        def outcomes() -> list[str]:
            return [one.outcome for one in decisions.after(0)]

        def update_until(outcome: str) -> list[int | None]:
            ceilings = []
            for _ in range(MOST_UPDATES):
                before = manager.cpu_seconds(name)
                while manager.cpu_seconds(name) - before < WORKED:
                    time.sleep(0.01)
                limiter.update()
                ceilings.append(limiter.ceiling)
                if outcomes()[-1:] == [outcome]:
                    break
            return ceilings

        limiter.update()
        seen: dict[str, Any] = {"no pods": (limiter.ceiling, quota(manager))}
        pids = {}
        for cpu, pod in enumerate([guaranteed("works", "300m"), best_effort("fills")]):
            manager.create_pod(pod)
            pids[pod.uid] = spawn(manager, make_container(manager, pod), spin, cpu % (os.cpu_count() or 1))
        seen["falling"] = update_until("limited")
        seen["in force"] = (quota(manager), str(100 * (limiter.ceiling or 0)))
        gauge = registry.metrics["kubengine_best_effort_cpu_ceiling_cores"]
        seen["gauge"] = (list(gauge.collect()), (limiter.ceiling or 0) / 1000)
        end(pids.pop("works"))
        manager.remove_pod("works", wait=5.0)
        seen["rising"] = update_until("released")
        seen["decided"] = outcomes()
        seen["inputs"] = dict(decisions.after(0)[0].inputs)
        await limiter.stop()
        seen["stopped"] = quota(manager)
        limiter.update()
        limiter.update()
        seen["again"] = quota(manager) != seen["stopped"]
        seen["pod's use"] = (manager.pod_cpu_seconds("fills"), manager.cpu_seconds(name))
        end(*pids.values())
        manager.remove_pod("fills", wait=5.0)
        limiter.update()
        with pytest.raises(Refused, match="fills"):
            manager.pod_cpu_seconds("fills")
        seen["gone"] = (limiter.ceiling, quota(manager))
    return seen


def idle(root: str) -> dict[str, Any]:
    """Return cpu.idle and the CPU share of the BestEffort level with `best_effort_idle`, and after a later
    agent without it."""
    first = new_manager(root, best_effort_idle=True)
    name = first.levels.names[BEST_EFFORT]

    def values(manager: CgroupManager) -> list[str | None]:
        share = CPU_SHARE[manager.mounts.version]
        return [manager.tree.read(name, CPU_IDLE), manager.tree.read(name, share)]

    first.start()
    first.create_pod(best_effort("e"))
    seen = {"idle": values(first)[0], "drift": first.reconcile()}
    first.stop()
    with running(new_manager(root)) as after:
        seen["after"] = values(after)
    return seen
