"""Check resource control through the whole node, for any cgroup version and runtime.

Each scene takes a running agent, ends the pods that it wrote, and returns its observations as plain data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from engine.cgroups.formulas.file_names import CPU_BURST
from engine.cgroups.formulas.names import Driver, parse_cgroupfs, to_cgroupfs, to_systemd
from engine.cgroups.interface_files import CPU_SHARE, MEMORY_LIMIT
from engine.host.cgroupfs.mounts import find_mounts
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.processes import RuntimeCgroups
from engine.testing.images import BUSYBOX_TAG, busybox_layer, write_image
from tests.node_rig import Rig
from tests.waiting import eventually

WAIT = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
MI = 1 << 20
CPU_LIMIT = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
OOM_KILLS = {1: "memory.oom_control", 2: "memory.events"}


async def on_node(
    scenes: Sequence[str], directory: Path, endpoint: Path, cgroup_root: str, driver: Driver = "cgroupfs"
) -> dict[str, Any]:
    """Run these scenes one after another on one agent, and return their results by name."""
    rig = Rig(
        directory,
        endpoint,
        cgroups_per_qos=True,
        enforce_node_allocatable=["pods"],
        cgroup_root=cgroup_root,
        cgroup_driver=driver,
        qos_reserved={"memory": "100%"},
    )
    rig.section.cgroups.pod_annotations = ["cpu-burst"]
    try:
        await rig.start()
        seen = {}
        for name in scenes:
            seen[name] = await SCENES[name](rig)
            await no_pods(rig)
        return seen
    finally:
        await rig.close()


async def on_embedded_runtime(
    scenes: Sequence[str], directory: Path, cgroup_root: str, driver: Driver = "cgroupfs"
) -> dict[str, Any]:
    """Run `on_node` with real processes of the embedded runtime as containers."""
    runtime = EmbeddedRuntime(
        socket=directory / "cri.sock",
        root=directory / "images",
        state=directory / "state",
        cgroups=RuntimeCgroups(driver),
    )
    await runtime.start()
    try:
        layers = [busybox_layer(("sh", "sleep", "dd"))]
        await runtime.import_image(write_image(directory / "busybox.tar", [BUSYBOX_TAG], layers=layers))
        (directory / "node").mkdir()
        return await on_node(scenes, directory / "node", runtime.socket, cgroup_root, driver)
    finally:
        await runtime.purge()


async def worked_example(rig: Rig) -> dict[str, Any]:
    """Return the values of one pod of each class, small enough for one CPU and 512 MiB."""
    small, large = amounts("250m", "64Mi"), amounts("500m", "128Mi")
    first = container("a", requests=small, limits=small)
    second = container("b", requests=small, limits=large)
    write(rig, "g", first)
    write(rig, "b", first, second)
    write(rig, "e", container("a"))
    await eventually(lambda: all(rig.phase(name) == "Running" for name in "gbe"))
    levels = {"kubepods": (), "burstable": ("burstable",), "besteffort": ("besteffort",)}
    parents = {"g": (), "b": ("burstable",), "e": ("besteffort",)}
    pods = {name: (*parents[name], f"pod{rig.pod(name).uid}") for name in "gbe"}
    containers = {
        f"{name}/{status.name}": (*pods[name], container_id(status))
        for name in "gbe"
        for status in rig.pod(name).status.container_statuses
    }
    groups = levels | pods | containers
    manager: Any = rig.node.components["cgroups"]
    seen = {
        "version": version(),
        "shares": {key: int(text(rig, CPU_SHARE, *path)) for key, path in groups.items()},
        "quota": {key: text(rig, CPU_LIMIT, *path).split()[0] for key, path in groups.items()},
        "memory": {key: memory_limit(rig, *path) for key, path in groups.items()},
        "faults": sorted({finding.kind for finding in manager.check()}),
    }
    await no_pods(rig)
    left = {path.name for root in roots(rig) for path in root.rglob("*") if path.is_dir()}
    return seen | {"left": sorted(name.removesuffix(".slice").rpartition("-")[2] for name in left)}


async def memory_hog(rig: Rig) -> dict[str, Any]:
    """Return how a container beyond its memory limit ends, and the state of a pod of the same class beside
    it."""
    limits = amounts("500m", "24Mi")
    write(rig, "calm", container("a", limits=limits))
    await eventually(lambda: rig.phase("calm") == "Running")
    hog = "sleep 1; dd if=/dev/zero of=/dev/null bs=96M count=1"
    write(rig, "hog", container("a", hog, limits=limits), restartPolicy="Never")
    await eventually(lambda: rig.phase("hog") == "Failed")
    ended = rig.pod("hog").status.container_statuses[0].state.terminated
    calm = rig.pod("calm").status.container_statuses[0]
    group = (f"pod{rig.pod('calm').uid}", container_id(calm))
    events = text(rig, OOM_KILLS, *group).splitlines()
    return {
        "version": version(),
        "reason": ended.reason,
        "exit_code": ended.exit_code,
        "calm": [rig.phase("calm"), calm.restart_count, *(e for e in events if e.startswith("oom_kill "))],
        "dies_whole": version() == 2 and text(rig, {2: "memory.oom.group"}, *group) == "1",
    }


async def live_resize(rig: Rig) -> dict[str, Any]:
    """Return the sizes of a running container after manifests that grow it, shrink it, and ask for too much.

    Its cpu-burst annotation lets it save half of its CPU quota.
    """

    def resize(cpu: str, memory: str) -> None:
        spec = {"hostNetwork": True, "containers": [container("a", limits=amounts(cpu, memory))]}
        rig.write("g", spec, annotations={"kubengine.dev/cpu-burst": "50%"})

    def status() -> Any:
        return rig.pod("g").status.container_statuses[0]

    def sizes() -> list[list[Any]]:
        """Return quota, memory limit in MiB and burst, of the pod's group and of its container's."""
        pod = f"pod{rig.pod('g').uid}"
        return [
            [text(rig, CPU_LIMIT, *path).split()[0], memory_limit(rig, *path), text(rig, CPU_BURST, *path)]
            for path in ((pod,), (pod, container_id(status())))
        ]

    def reported_limits() -> dict[str, str]:
        actual = status().resources
        return {name: str(amount) for name, amount in ((actual and actual.limits) or {}).items()}

    def pending() -> str:
        conditions = rig.pod("g").status.conditions or []
        return next((c.reason for c in conditions if c.type == "PodResizePending"), "")

    resize("250m", "64Mi")
    await eventually(lambda: rig.phase("g") == "Running")
    before = (rig.pod("g").uid, status().container_id, status().restart_count)
    seen: dict[str, Any] = {"sizes": [sizes()], "reported": []}
    for cpu, memory in (("1", "256Mi"), ("100m", "32Mi")):
        resize(cpu, memory)
        await eventually(lambda cpu=cpu: reported_limits().get("cpu") == cpu)
        seen["sizes"].append(sizes())
        seen["reported"].append(reported_limits())
    seen["completed"] = rig.reasons().count("ResizeCompleted")
    resize("1000", "32Mi")
    await eventually(lambda: pending() == "Infeasible")
    seen["infeasible"] = sizes()
    resize("100m", "32Mi")
    await eventually(lambda: not pending())
    seen["same"] = before == (rig.pod("g").uid, status().container_id, status().restart_count)
    return seen


SCENES: dict[str, Callable[[Rig], Awaitable[dict[str, Any]]]] = {
    scene.__name__: scene for scene in (worked_example, memory_hog, live_resize)
}


def container(name: str, script: str = WAIT, **resources: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": BUSYBOX_TAG,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": resources,
    }


def amounts(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


def write(rig: Rig, name: str, *containers: dict[str, Any], **spec: Any) -> None:
    """Write a manifest in the host's network: a kernel of the test's own has no bridge."""
    rig.write(name, {"hostNetwork": True, "containers": list(containers), **spec})


async def no_pods(rig: Rig) -> None:
    for manifest in rig.manifests.glob("*.yaml"):
        await asyncio.to_thread(manifest.unlink)
    await eventually(lambda: not rig.node.pods())


def container_id(status: Any) -> str:
    """Return the container's id, which also names its group."""
    return str(status.container_id.rpartition("/")[2])


def version() -> int:
    return find_mounts().version


def below_root(rig: Rig, *below: str) -> str:
    """Return the path of a group below the root of all pods; the last name may be a container's id."""
    name = (*parse_cgroupfs(rig.config.cgroup_root), "kubepods", *below)
    if rig.config.cgroup_driver == "cgroupfs":
        return to_cgroupfs(name)
    if name[-1].startswith("pod") or name[-1] in ("kubepods", "burstable", "besteffort"):
        return to_systemd(name)
    return f"{to_systemd(name[:-1])}/kubengine-{name[-1]}.scope"


def roots(rig: Rig) -> list[Path]:
    """Return the directory of the root of all pods in every hierarchy."""
    return [Path(hierarchy.path + below_root(rig)) for hierarchy in find_mounts().hierarchies]


def text(rig: Rig, kind: dict[int, str], *below: str) -> str:
    """Read a file of a group below the root of all pods, without the agent."""
    file = kind[version()]
    hierarchy = find_mounts().holding(file.partition(".")[0])
    assert hierarchy is not None
    return Path(hierarchy.path + below_root(rig, *below), file).read_text().strip()


def memory_limit(rig: Rig, *below: str) -> int | None:
    """Return the memory limit of a group in MiB; None if it has no limit."""
    limit = text(rig, MEMORY_LIMIT, *below)
    return int(limit) // MI if limit.isdigit() and int(limit) < 1 << 60 else None
