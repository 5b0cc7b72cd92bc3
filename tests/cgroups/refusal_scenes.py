"""Provoke each refusal of a real kernel. Scenes are as in `cgroup_scenes`."""

# ruff: noqa: PTH102, PTH106, PTH112

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec
from cgroup_scenes import (
    MI,
    attempt,
    end,
    guaranteed,
    make_container,
    managed,
    new_manager,
    put,
    read,
    remove,
    spawn,
    spawn_holder,
    start_and_stop,
)

from engine.cgroups.formulas.names import CgroupName
from engine.cgroups.interface_files import MEMORY_LIMIT
from engine.cgroups.manager import CgroupManager


def as_nobody(action: Callable[[], Any]) -> dict[str, Any]:
    """Run `attempt` in a process without privileges."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        os.write(write_end, msgspec.json.encode(attempt(action)))
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as file:
        refusal: dict[str, Any] = msgspec.json.decode(file.read())
    return refusal


def refused_then_repaired(root: str) -> dict[str, Any]:
    """Return the refusals that both versions share. Each is one error, and the next try succeeds."""
    seen: dict[str, Any] = {}
    with managed(root) as manager:
        one = guaranteed("g", "500m", "64Mi")
        seen["no permission"] = as_nobody(lambda: manager.create_pod(one))
        manager.create_pod(one)
        name = manager.pods.name(one)
        limit = MEMORY_LIMIT[manager.mounts.version]

        child = (*name, "child")
        pid = spawn_in(manager, child)
        seen["busy on removal"] = attempt(lambda: manager.remove_pod("g", kill=False))
        end(pid)
        manager.remove_pod("g", wait=5.0)
        manager.create_pod(one)

        seen["bad value"] = attempt(lambda: manager.tree.write_files(name, {limit: "nonsense"}))
        seen["no such file"] = attempt(lambda: manager.tree.write_files(name, {"memory.no_such_file": "1"}))
        manager.tree.group(name).wanted = manager.pods.files(one)
        manager.create_pod(one)
        seen["after"] = attempt(manager.write_all)
        seen["value"] = read(manager, name, MEMORY_LIMIT)
    return seen


def spawn_in(manager: CgroupManager, name: CgroupName) -> int:
    manager.tree.make(name)
    pid = spawn(manager, name, signal.pause)
    manager.tree.forget(name)
    return pid


def v1_refusals(root: str) -> dict[str, Any]:
    """Return the refusals of a limit below usage (EBUSY) and of a quota above the parent's (EINVAL)."""
    seen: dict[str, Any] = {}
    with managed(root) as manager:
        one = guaranteed("g", "500m", "64Mi")
        manager.create_pod(one)
        name = manager.pods.name(one)
        pid = spawn_holder(manager, make_container(manager, one), 16 * MI)
        seen["below usage"] = attempt(
            lambda: manager.tree.write_files(name, {"memory.limit_in_bytes": str(4 * MI)})
        )
        end(pid)
        top = manager.settings.root
        manager.tree.write_files(top, {"cpu.cfs_quota_us": "60000"})
        seen["above parent"] = attempt(lambda: manager.tree.write_files(name, {"cpu.cfs_quota_us": "90000"}))
        manager.tree.write_files(top, {"cpu.cfs_quota_us": "-1"})
        seen["after"] = attempt(lambda: manager.tree.write_files(name, manager.pods.files(one)))
    return seen


def v2_refusals(root: str) -> dict[str, Any]:
    """Return the refusals that only v2 has, and the attempts after each repair.

    They are: processes in an inner group, a threaded subtree, too many groups, a controller that the parent
    does not delegate, a read-only mount.
    """
    seen: dict[str, Any] = {}
    mount = new_manager(root).mounts.hierarchies[0].path
    base = mount + root
    os.mkdir(base)

    os.mkdir(f"{base}/threaded")
    put(f"{base}/threaded/cgroup.type", "threaded")
    seen["threaded"] = attempt(lambda: start_and_stop(f"{root}/threaded"))
    for left in ("threaded/kubepods", "threaded"):
        if os.path.isdir(f"{base}/{left}"):
            os.rmdir(f"{base}/{left}")
    seen["threaded, after"] = attempt(lambda: start_and_stop(f"{root}/threaded"))

    os.mkdir(f"{base}/full")
    pid = os.fork()
    if pid == 0:
        signal.pause()
    put(f"{base}/full/cgroup.procs", str(pid))
    seen["processes inside"] = attempt(lambda: start_and_stop(f"{root}/full"))
    end(pid)
    seen["processes inside, after"] = attempt(lambda: start_and_stop(f"{root}/full"))
    for inner in ("full", "threaded"):
        remove(f"{root}/{inner}")
    os.mkdir(base)

    put(f"{base}/cgroup.max.descendants", "3")
    manager = new_manager(root)
    manager.start()
    seen["too many"] = attempt(lambda: manager.create_pod(guaranteed("g")))
    put(f"{base}/cgroup.max.descendants", "max")
    seen["too many, after"] = attempt(lambda: manager.create_pod(guaranteed("g")))
    manager.remove_pod("g")

    for group in ("kubepods/burstable", "kubepods/besteffort", "kubepods", ""):
        put(f"{base}/{group}/cgroup.subtree_control", "-memory")
    seen["controller removed"] = attempt(lambda: manager.create_pod(guaranteed("g", "1", "64Mi")))
    seen["memory"] = read(manager, (*manager.settings.root, "podg"), MEMORY_LIMIT)

    os.system(f"mount --bind {mount} {mount} && mount -o remount,bind,ro {mount}")
    seen["read-only write"] = attempt(lambda: manager.create_pod(guaranteed("h")))
    seen["read-only start"] = attempt(lambda: start_and_stop(root))
    os.system(f"mount -o remount,bind,rw {mount}")
    seen["read-only, after"] = attempt(lambda: manager.create_pod(guaranteed("h")))
    os.system(f"umount {mount}")
    manager.remove_all()
    manager.stop()
    return seen
