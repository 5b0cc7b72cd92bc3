"""Run the systemd driver where systemd is init and owns the cgroup tree, as a service of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from cgroup_scenes import best_effort, burstable, guaranteed, managed

from engine.cgroups.formulas.names import systemd_unit
from engine.cgroups.manager import CgroupManager
from engine.cgroups.systemd import SystemdSlices
from tests.waiting import PATIENCE

MI = 1 << 20
SHOWN = (
    "CPUWeight",
    "CPUQuotaPerSecUSec",
    "MemoryMax",
    "MemoryMin",
    "MemoryLow",
    "TasksMax",
    "Slice",
    "ActiveState",
)


def slices(root: str) -> dict[str, Any]:
    """Return files and properties of pods of all classes as slices, before and after systemd reloads its
    units.

    The scene then removes the pods, and returns the units and directories that are left.
    """
    config = {
        "cgroup_driver": "systemd",
        "reserved": "50%",
        "capacity": {"cpu": 3000, "memory": 256 * MI, "pid": 30000},
        "pod_pids_limit": 77,
        "feature_gates": {"MemoryQoS": True},
        "memory_reservation_policy": "TieredReservation",
    }
    pods = [guaranteed("g-1", "500m", "32Mi"), burstable("b-1", "200m", "16Mi"), best_effort("e-1")]
    with managed(root, **config) as manager:
        seen: dict[str, Any] = {"parents": [manager.create_pod(one) for one in pods]}
        seen["differing"] = differing(manager)
        seen["properties"] = {
            unit: properties(unit) for unit in (*seen["parents"][:2], "kubepods-burstable.slice")
        }
        systemctl("daemon-reload")
        seen["differing_after_reload"] = differing(manager)
        seen["quiet"] = manager.reconcile()
        manager.remove_pod("b-1")
        seen["removed"] = properties(seen["parents"][1])["ActiveState"]
    seen["left"] = systemctl("list-units", "--all", "--plain", "--no-legend", "kubepods*")
    seen["directories"] = [path.name for path in Path("/sys/fs/cgroup").glob("kubepods*")]
    return seen


def followed(root: str) -> dict[str, Any]:
    """Return the files that differ after a first start, and after each thing that systemd may do to the tree.

    It reloads its units, stops a level, stops everything, and gives the root an administrator's CPUs.
    """
    config = {"cgroup_driver": "systemd", "capacity": {"cpu": 3000, "memory": 256 * MI, "pid": 30000}}
    pods = [guaranteed("g-1", "500m", "32Mi"), burstable("b-1", "200m", "16Mi"), best_effort("e-1")]
    with managed(root, **config) as manager:
        for pod in pods:
            manager.create_pod(pod)
        top = systemd_unit(manager.settings.root)[0]
        seen: dict[str, Any] = {"started": differing(manager)}
        systemctl("daemon-reload")
        seen["reloaded"] = differing(manager)
        systemctl("stop", top.replace(".slice", "-burstable.slice"))
        manager.create_pod(pods[1])
        level = manager.tree.group(manager.pods.name(pods[1])[:-1])
        seen["level stopped"] = {
            "differing": differing(manager),
            "remade": manager.tree.exists(level.name),
        }
        systemctl("stop", top)
        manager.reconcile()
        for pod in pods:
            manager.create_pod(pod)
        seen["all stopped"] = differing(manager)
        systemctl("set-property", "--runtime", top, "AllowedCPUs=0")
        manager.create_pod(burstable("b-2", "100m", "16Mi"))
        seen["AllowedCPUs"] = {
            "cpuset.cpus": manager.tree.read(manager.settings.root, "cpuset.cpus"),
            "differing": differing(manager),
            "writes": manager.reconcile(),
        }
        with managed(root, **config) as again:
            for pod in pods:
                again.create_pod(pod)
            seen["restarted"] = differing(again)
    seen["left"] = systemctl("list-units", "--all", "--plain", "--no-legend", top.replace(".slice", "*"))
    return seen


def without_bus(name: tuple[str, ...]) -> dict[str, Any]:
    """Start, change and stop a slice where the bus is not installed."""
    slices = SystemdSlices("unix:path=/run/no-bus")
    for _ in range(2):
        slices.start(name)
    slices.set(name, {"pids.max": "64", "cpu.weight": "39"})
    unit = systemd_unit(name)[0]
    seen: dict[str, Any] = {"started": properties(unit)}
    for _ in range(2):
        slices.stop(name)
    seen["stopped"] = properties(unit)["ActiveState"]
    slices.close()
    return seen


def differing(manager: CgroupManager) -> list[str]:
    """Return each file of a group whose text differs from the wanted one."""
    return [
        f"{group.path}/{file}: {actual!r}, not {text!r}"
        for group in list(manager.tree.groups.values())
        for file, text in group.wanted.items()
        if (actual := manager.tree.read(group.name, file)) != text
    ]


def properties(unit: str) -> dict[str, str]:
    """Return the `SHOWN` properties of a unit, as systemd reports them."""
    shown = systemctl("show", unit, *(f"--property={name}" for name in SHOWN))
    return dict(line.split("=", 1) for line in shown.splitlines())


def systemctl(*arguments: str) -> str:
    return subprocess.run(
        ["systemctl", *arguments], capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout
