"""Apply annotations of pods on a real kernel.

Each scene takes a private cgroup root, and returns its observations as plain data.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from cgroup_scenes import (
    CAPACITY,
    MI,
    as_pod,
    end,
    guaranteed,
    hold,
    make_container,
    read,
    spawn,
)

from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.cgroups.formulas.file_names import CPU_BURST
from engine.cgroups.manager import CgroupManager

PERIOD, WORK = 0.1, 0.035
ENOUGH = 10


@contextmanager
def allowing(root: str, *names: str) -> Iterator[CgroupManager]:
    manager = CgroupManager(
        config=KubeletConfiguration(cgroup_root=root, eviction_hard={}),
        section=CgroupsSection(cpu_weight="linear", pod_annotations=list(names)),
        capacity=CAPACITY,
    )
    manager.start()
    try:
        yield manager
    finally:
        manager.remove_all(kill=True, wait=5.0)
        manager.stop()


def annotated(pod: Pod, **annotations: str) -> Pod:
    """Return the pod with these annotations: `cpu_burst="50%"` becomes `kubengine.dev/cpu-burst: 50%`."""
    named = {f"kubengine.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=named))


def bursts() -> None:
    """Work for more than a quota and less than two, then a pause that leaves the quota's share unused."""
    while True:
        until = time.thread_time() + WORK
        while time.thread_time() < until:
            pass
        time.sleep(3 * PERIOD)


def burst(root: str) -> dict[str, Any]:
    """Return in how many periods each of two pods with equal work and limits used a saved quota.

    Only one pod may save its unused quota. The scene ends once that pod has used it often, and the other was
    throttled often.
    """
    pods = {
        "plain": guaranteed("plain", "200m", "64Mi"),
        "saving": annotated(guaranteed("saving", "200m", "64Mi"), cpu_burst="100%"),
    }
    with allowing(root, "cpu-burst") as manager:
        tree, pids = manager.tree, {}
        for uid, one in pods.items():
            manager.create_pod(one)
            name = make_container(manager, one)
            manager.set_burst(one, name[-1], 20_000)
            pids[uid] = spawn(manager, name, bursts)

        def periods(uid: str, key: str) -> int:
            """Return the periods that the kernel counts under `key`, in both of the pod's groups."""
            name = manager.pods.name(pods[uid])
            texts = [tree.read(group, "cpu.stat") or "" for group in (name, (*name, "c0"))]
            lines = [line.split() for text in texts for line in text.splitlines()]
            return sum(int(number) for counted, number in lines if counted == key)

        while periods("plain", "nr_throttled") < ENOUGH or periods("saving", "nr_bursts") < ENOUGH:
            time.sleep(PERIOD)
        seen = {
            "bursts": {uid: periods(uid, "nr_bursts") for uid in pids},
            "burst": {uid: read(manager, manager.pods.name(one), CPU_BURST) for uid, one in pods.items()},
            "metric": dict(manager._annotated()) == {("cpu-burst",): 1.0},
        }
        end(*pids.values())
    return seen


def killed_together(root: str) -> dict[str, Any]:
    """Return the processes that survive when a pod reaches its memory limit, by the scope of its oom-group
    annotation."""
    seen = {}
    with allowing(root, "oom-group") as manager:
        for scope in ("process", "container", "pod"):
            one = annotated(
                as_pod(
                    {
                        "metadata": {"name": scope, "uid": scope},
                        "spec": {
                            "resources": {"limits": {"memory": "64Mi", "cpu": "1"}},
                            "containers": [{"name": "hog"}, {"name": "calm"}],
                        },
                    }
                ),
                oom_group=scope,
            )
            manager.create_pod(one)
            hog, calm = (make_container(manager, one, index) for index in (0, 1))
            manager.tree.write_files(hog, {"memory.max": "max"})
            pids = {
                "calm": spawn(manager, calm, hold(4 * MI)),
                "beside": spawn(manager, hog, hold(4 * MI)),
                "hog": spawn(manager, hog, hold(96 * MI)),
            }
            os.waitpid(pids.pop("hog"), 0)
            alive = []
            for name, pid in pids.items():
                if os.waitpid(pid, os.WNOHANG if _lives_on(scope, name) else 0) == (0, 0):
                    alive.append(name)
                    end(pid)
            seen[scope] = sorted(alive)
            manager.remove_pod(one.uid, wait=5.0)
    return seen


def _lives_on(scope: str, name: str) -> bool:
    """Tell whether the process must survive; the others are waited for, as their deaths may take a moment."""
    return scope == "process" or (scope == "container" and name == "calm")


def limited(root: str, directory: str) -> dict[str, Any]:
    """Return burst, swap and disk limits as the kernel reads them back, after a repair of drift, and its
    refusals."""
    disk = Path(directory, "disk")
    os.mknod(disk, 0o600 | stat.S_IFBLK, os.makedev(98, 0))
    own = guaranteed("limited", "200m", "64Mi")
    one = annotated(own, cpu_burst="50%", swap="16Mi", io_max=f"{disk} wbps=1Mi riops=100")
    with allowing(root, "cpu-burst", "swap", "io-max") as manager:
        manager.create_pod(one)
        name = manager.pods.name(one)
        container = make_container(manager, one)
        manager.set_burst(one, container[-1], 20_000)
        seen: dict[str, Any] = {
            "burst": [read(manager, group, CPU_BURST) for group in (name, container)],
            "swap": [manager.tree.read(group, "memory.swap.max") for group in (name, container)],
            "io": manager.tree.read(name, "io.max"),
            "quiet": manager.write_all(),
        }
        Path(manager.mounts.hierarchies[0].path + manager.tree.group(name).path, "io.max").write_text(
            "98:0 wbps=max"
        )
        manager.reconcile()
        seen["restored"] = manager.tree.read(name, "io.max")
        absent = annotated(guaranteed("absent"), io_max="7:99 rbps=1Mi")
        try:
            manager.create_pod(absent)
        except Refused as error:
            seen["refused"] = error.message
    try:
        with allowing(root, "io-weight"):
            pass
    except Refused as error:
        seen["no_file"] = error.message
    return seen
