"""Check on a real kernel the behaviour that cgroup v1 and v2 share.

Each scene takes a private cgroup root, returns its observations as plain data, and removes every group that
it made.
"""

# ruff: noqa: PTH102, PTH106, PTH110, PTH123

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cgroups import ContainerResources
from engine.cgroups.formulas.names import CgroupName
from engine.cgroups.interface_files import CPU_SHARE, MEMORY_LIMIT
from engine.cgroups.manager import CgroupManager
from engine.cgroups.plan import container_values

MI, GI = 1 << 20, 1 << 30
CAPACITY = {"cpu": 3000, "memory": 8 * GI, "pid": 30000}
ENOUGH_SECONDS, TOO_MANY_SECONDS, NEAR = 3.5, 60.0, 0.03
"""CPU seconds after which the parts are compared, and after which waiting ends; how much parts may differ."""


def pod(uid: str, *containers: dict[str, Any], **spec: Any) -> Pod:
    """Build a pod with one container for each of these resources."""
    listed = [{"name": f"c{number}", "resources": resources} for number, resources in enumerate(containers)]
    return as_pod({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": listed, **spec}})


def as_pod(document: dict[str, Any]) -> Pod:
    return msgspec.convert(document, Pod, dec_hook=decode_hook)


def amounts(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


def guaranteed(uid: str, cpu: str = "1", memory: str = "1Gi") -> Pod:
    return pod(uid, {"requests": amounts(cpu, memory), "limits": amounts(cpu, memory)})


def burstable(uid: str, cpu: str = "1", memory: str = "1Gi") -> Pod:
    return pod(uid, {"requests": amounts(cpu, memory)})


def best_effort(uid: str) -> Pod:
    return pod(uid, {})


def new_manager(root: str, *, reserved: str | None = None, **config: Any) -> CgroupManager:
    section = CgroupsSection(cpu_weight=config.pop("cpu_weight", "linear"))
    capacity = config.pop("capacity", CAPACITY)
    settings = KubeletConfiguration(
        cgroup_root=root,
        qos_reserved={"memory": reserved} if reserved else None,
        eviction_hard=config.pop("eviction_hard", {}),
        **config,
    )
    return CgroupManager(config=settings, section=section, capacity=capacity)


@contextmanager
def managed(root: str, **config: Any) -> Iterator[CgroupManager]:
    manager = new_manager(root, **config)
    manager.start()
    try:
        yield manager
    finally:
        manager.remove_all(kill=True, wait=5.0)
        manager.stop()


def make_container(manager: CgroupManager, owner: Pod, index: int = 0) -> CgroupName:
    """Make a container's group with the values that a runtime would write, and return the group's name."""
    container = owner.spec.containers[index]
    wanted = container_values(manager.container_resources(owner, container))
    name = (*manager.pods.name(owner), container.name)
    manager.tree.write_files(name, manager.tree.rules.files(wanted))
    return name


def spawn(manager: CgroupManager, name: CgroupName, body: Callable[[], None], cpu: int | None = None) -> int:
    """Start a process that joins a group in every hierarchy and then runs `body`; return its pid."""
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(ready, 1)
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            body()
        finally:
            os._exit(0)
    path = manager.tree.group(name).path
    for hierarchy in manager.mounts.hierarchies:
        with open(f"{hierarchy.path}{path}/cgroup.procs", "w") as file:
            file.write(str(pid))
    os.write(go, b"x")
    os.close(ready)
    os.close(go)
    return pid


def spin() -> None:
    while True:
        pass


def hold(amount: int, held: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """Return a body for `spawn` that touches `amount` bytes, then calls `held`, and keeps them until it is
    killed."""

    def body() -> None:
        memory = bytearray(amount)
        for offset in range(0, amount, 4096):
            memory[offset] = 1
        held()
        signal.pause()

    return body


def spawn_holder(manager: CgroupManager, name: CgroupName, amount: int) -> int:
    """Start a process in a group and return its pid once it holds `amount` bytes.

    Raises ChildProcessError if it dies before.
    """
    held, holding = os.pipe()
    pid = spawn(manager, name, hold(amount, lambda: os.write(holding, b"x")))
    os.close(holding)
    if not os.read(held, 1):
        raise ChildProcessError(f"process {pid} died before it held {amount} bytes")
    os.close(held)
    return pid


def end(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(manager: CgroupManager, name: CgroupName, kind: dict[int, str]) -> str | None:
    return manager.tree.read(name, kind[manager.mounts.version])


def worked_example(root: str) -> dict[str, Any]:
    """Return the values and CPU parts of one pod of each class, on 3 cores and 8 Gi with qosReserved
    memory=100%."""
    first = guaranteed("g")
    second = pod(
        "b",
        {"requests": amounts("1", "1Gi"), "limits": amounts("1", "1Gi")},
        {"requests": amounts("1", "1Gi"), "limits": amounts("2", "2Gi")},
    )
    third = best_effort("e")
    seen: dict[str, Any] = {}
    with managed(root, reserved="100%") as manager:
        for one in (first, second, third):
            manager.create_pod(one)
        top = manager.settings.root
        containers = {
            "g/c0": make_container(manager, first),
            "b/c0": make_container(manager, second, 0),
            "b/c1": make_container(manager, second, 1),
            "e/c0": make_container(manager, third),
        }
        groups = {
            "kubepods": top,
            "burstable": (*top, "burstable"),
            "besteffort": (*top, "besteffort"),
            "g": (*top, "podg"),
            "b": (*top, "burstable", "podb"),
            "e": (*top, "besteffort", "pode"),
            **containers,
        }
        seen["version"] = manager.mounts.version
        seen["shares"] = {key: read(manager, name, CPU_SHARE) for key, name in groups.items()}
        seen["memory"] = {key: read(manager, name, MEMORY_LIMIT) for key, name in groups.items()}
        pids = {key: spawn(manager, name, spin, cpu=0) for key, name in containers.items()}
        seen["cpu"] = cpu_parts(pids, {"g/c0": 1 / 3, "b/c0": 1 / 3, "b/c1": 1 / 3, "e/c0": 0.0})
        end(*pids.values())
    return seen


def cpu_parts(pids: dict[str, int], expected: dict[str, float]) -> dict[str, float]:
    """Return each process's part of the CPU that they share, once the parts are as expected or enough time
    was used.

    The kernel charges a process with the time in which the machine stood still, and compensates the others
    later. So the parts may need a while to settle.
    """
    before = {key: cpu_seconds(pid) for key, pid in pids.items()}
    while True:
        time.sleep(0.1)
        used = {key: cpu_seconds(pid) - before[key] for key, pid in pids.items()}
        together = sum(used.values())
        if together < ENOUGH_SECONDS:
            continue
        parts = {key: seconds / together for key, seconds in used.items()}
        as_expected = all(abs(parts[key] - part) < NEAR for key, part in expected.items())
        if as_expected or together > TOO_MANY_SECONDS:
            return parts


def cpu_split(root: str) -> dict[str, float]:
    """Return the parts of one CPU that two spinning pods get, of which one requests three times as much."""
    with managed(root) as manager:
        pods = {"small": burstable("small", "200m"), "large": burstable("large", "600m")}
        pids = {}
        for key, one in pods.items():
            manager.create_pod(one)
            pids[key] = spawn(manager, make_container(manager, one), spin, cpu=0)
        parts = cpu_parts(pids, {"small": 0.25, "large": 0.75})
        end(*pids.values())
    return parts


def memory_hog(root: str) -> dict[str, Any]:
    """Return how a container beyond its pod's memory limit ends, and whether its neighbour survives."""
    with managed(root) as manager:
        hog, neighbour = guaranteed("hog", "100m", "32Mi"), guaranteed("neighbour", "100m", "64Mi")
        for one in (hog, neighbour):
            manager.create_pod(one)
        quiet = spawn(manager, make_container(manager, neighbour), hold(8 * MI))
        victim = spawn(manager, make_container(manager, hog), hold(96 * MI))
        _, status = os.waitpid(victim, 0)
        alive = os.waitpid(quiet, os.WNOHANG) == (0, 0)
        end(quiet)
    return {"killed_by": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, "neighbour_alive": alive}


def reservation_follows(root: str) -> dict[str, Any]:
    """Return the qosReserved limits as pods come and go, and while a level uses more than its limit."""
    seen: dict[str, Any] = {"burstable": [], "besteffort": []}
    with managed(root, reserved="50%", capacity={"cpu": 3000, "memory": 256 * MI}) as manager:
        levels = {key: (*manager.settings.root, key) for key in ("burstable", "besteffort")}

        def note() -> None:
            for key, name in levels.items():
                seen[key].append(int(read(manager, name, MEMORY_LIMIT) or 0) // MI)

        note()
        manager.create_pod(guaranteed("g", "1", "64Mi"))
        note()
        user = burstable("b", "1", "32Mi")
        manager.create_pod(user)
        note()
        pid = spawn_holder(manager, make_container(manager, user), 100 * MI)
        manager.create_pod(guaranteed("h", "1", "288Mi"))
        limit = int(read(manager, levels["burstable"], MEMORY_LIMIT) or 0)
        seen["at_usage"] = 100 * MI <= limit <= 140 * MI
        seen["survived"] = os.waitpid(pid, os.WNOHANG) == (0, 0)
        end(pid)
        manager.reconcile()
        note()
        for uid in ("g", "h", "b"):
            manager.remove_pod(uid, wait=5.0)
        note()
    return seen


def outside_changes(root: str) -> dict[str, Any]:
    """Return whether groups are restored that another process removed, recreated, or changed."""
    seen: dict[str, Any] = {}
    with managed(root) as manager:
        one = guaranteed("g", "500m", "64Mi")
        manager.create_pod(one)
        name = (*manager.settings.root, "podg")
        good = {file: manager.tree.read(name, file) for file in manager.tree.group(name).wanted}
        for hierarchy in manager.mounts.hierarchies:
            os.rmdir(hierarchy.path + manager.tree.group(name).path)
        manager.reconcile()
        seen["removed"] = {file: manager.tree.read(name, file) for file in good} == good
        for hierarchy in manager.mounts.hierarchies:
            path = hierarchy.path + manager.tree.group(name).path
            os.rmdir(path)
            os.mkdir(path)
        manager.reconcile()
        seen["recreated"] = {file: manager.tree.read(name, file) for file in good} == good
        share = CPU_SHARE[manager.mounts.version]
        with open(f"{manager.tree.group(name).directory(share).path}/{share}", "w") as file:
            file.write("77")
        level = manager.tree.group((*manager.settings.root, "burstable")).directory(share).path
        put(f"{level}/{share}", "88")
        seen["fixed"] = manager.reconcile()
        seen["changed"] = {file: manager.tree.read(name, file) for file in good} == good
        again = new_manager(root)
        again.start()
        again.create_pod(one)
        seen["adopted_writes"] = again.tree.writes
        again.stop()
        seen["quiet_writes"] = manager.reconcile()
    return seen


def read_back(root: str) -> list[dict[str, Any]]:
    """Return each file that differs from its wanted value, for pods of all classes with every kind of value.

    The last entry counts the files.
    """
    config = {
        "kube_reserved": {"cpu": "200m", "memory": "64Mi", "pid": "100"},
        "system_reserved": {"cpu": "100m", "memory": "64Mi"},
        "pod_pids_limit": 77,
        "reserved": "30%",
        "feature_gates": {"MemoryQoS": True},
    }
    pods = [
        guaranteed("g", "1500m", "100Mi"),
        burstable("b", "333m", "10Mi"),
        pod("mixed", {"requests": {"cpu": "10m"}, "limits": amounts("20m", "4097")}, {}),
        pod("capped", {"limits": amounts("1", "64Mi"), "requests": {"cpu": "250m"}}),
        best_effort("e"),
    ]
    with managed(root, **config) as manager:
        for one in pods:
            manager.create_pod(one)
            for index in range(len(one.spec.containers)):
                make_container(manager, one, index)
        differing = [
            {"group": group.path, "file": file, "wanted": text, "actual": actual}
            for group in list(manager.tree.groups.values())
            for file, text in group.wanted.items()
            if (actual := manager.tree.read(group.name, file)) != text
        ]
        seen = sum(len(group.wanted) for group in manager.tree.groups.values())
    return [*differing, {"files": seen}]


def reserved_groups(root: str) -> dict[str, Any]:
    """Return the values in the groups of systemReserved and kubeReserved; only enforced ones are written."""
    config = {
        "system_reserved": {"cpu": "500m", "memory": "64Mi", "pid": "55"},
        "system_reserved_cgroup": f"{root}/system",
        "kube_reserved": {"cpu": "250m", "memory": "64Mi"},
        "kube_reserved_cgroup": f"{root}/kube",
        "enforce_node_allocatable": ["pods", "system-reserved", "kube-reserved-compressible"],
    }
    other = new_manager(root)
    base = other.settings.root[:-1]
    for name in ("system", "kube"):
        other.tree.make((*base, name))
    other.stop()
    with managed(root, **config) as manager:
        seen = {
            name: [read(manager, (*base, name), kind) for kind in (CPU_SHARE, MEMORY_LIMIT)]
            + [manager.tree.read((*base, name), "pids.max")]
            for name in ("system", "kube")
        }
        for name in ("system", "kube"):
            manager.tree.remove((*base, name))
    return seen


def root_restored(root: str) -> dict[str, Any]:
    """Return which files of the root changed while no agent ran, and whether the next agent restores them."""
    first = new_manager(root)
    first.start()
    top = first.settings.root
    good = {file: first.tree.read(top, file) for file in first.tree.group(top).wanted}
    paths = {file: first.tree.group(top).directory(file).path for file in good}
    changes = {"cpu.shares": "77", "cpu.weight": "77", "pids.max": "99"}
    changes |= {MEMORY_LIMIT[first.mounts.version]: str(64 * MI), "cpuset.cpus": "0"}
    first.stop()
    changed = [file for file in good if file in changes]
    for file in changed:
        for level in ("burstable", "besteffort") if file == "cpuset.cpus" else ():
            put(f"{paths[file]}/{level}/{file}", changes[file])
        put(f"{paths[file]}/{file}", changes[file])
    with managed(root) as manager:
        now = {file: manager.tree.read(top, file) for file in good}
    return {"changed": changed, "restored": now == good}


def live_resize(root: str) -> dict[str, Any]:
    """Return memory limits while a running container grows and shrinks, and the refusals of limits below its
    usage."""
    small, large, tiny = (
        guaranteed("g", *size) for size in (("500m", "64Mi"), ("1", "256Mi"), ("1", "16Mi"))
    )
    with managed(root) as manager:
        manager.create_pod(small)
        name = make_container(manager, small)
        pid = spawn_holder(manager, name, 32 * MI)
        limit = MEMORY_LIMIT[manager.mounts.version]

        async def update(container: str, resources: ContainerResources) -> None:
            manager.tree.write_files(name, manager.tree.rules.files(container_values(resources)))

        def sizes() -> list[int]:
            return [int(manager.tree.read(group, limit) or 0) // MI for group in (name[:-1], name)]

        seen: dict[str, Any] = {"sizes": [sizes()]}
        asyncio.run(manager.resize_pod(small, large, update))
        seen["sizes"].append(sizes())
        seen["container"] = attempt(
            lambda: asyncio.run(manager.resize_pod(large, tiny, update, {"c0": 32 * MI}))
        )
        seen["sizes"].append(sizes())
        asyncio.run(manager.resize_pod(large, small, update, {"c0": 32 * MI}))
        seen["sizes"].append(sizes())
        wanted = manager.pods.files(small)
        seen["as_made"] = {file: manager.tree.read(name[:-1], file) for file in wanted} == wanted

        async def leave(container: str, resources: ContainerResources) -> None:
            """Change nothing: this runtime leaves memory to the pod's group."""

        seen["pod"] = attempt(lambda: asyncio.run(manager.resize_pod(small, tiny, leave)))
        seen["alive"] = os.waitpid(pid, os.WNOHANG) == (0, 0)
        end(pid)
    return seen


def shrunk_while_away(root: str) -> dict[str, Any]:
    """Return how a new agent handles a pod whose manifest shrank below the memory in use while no agent ran.

    The container must survive, and the limit falls once the memory is free.
    """
    large, small = guaranteed("g", "500m", "128Mi"), guaranteed("g", "500m", "16Mi")
    first = new_manager(root)
    first.start()
    first.create_pod(large)
    name = first.pods.name(large)
    pid = spawn_holder(first, make_container(first, large), 48 * MI)
    first.stop()
    with managed(root) as manager:
        manager.create_pod(small)
        seen = {"refusals": dict(manager.pods.refusals), "limit": read(manager, name, MEMORY_LIMIT)}
        manager.reconcile()
        seen["still"] = list(manager.pods.refusals)
        seen["alive"] = os.waitpid(pid, os.WNOHANG) == (0, 0)
        end(pid)
        manager.tree.remove((*name, "c0"))
        manager.reconcile()
        seen["left"] = dict(manager.pods.refusals)
        seen["after"] = read(manager, name, MEMORY_LIMIT)
    return seen


def many_pods(root: str, count: int) -> dict[str, Any]:
    """Return what is written and left when `count` pods come and go; unchanged values must not be written."""
    with managed(root) as manager:
        before = manager.tree.writes
        expected = 0
        fresh = manager.tree.rules.fresh(manager.mounts.controllers)
        kinds = (guaranteed, burstable, best_effort)
        pods = [kinds[number % 3](f"p{number}") for number in range(count)]
        level = dict(manager.tree.group((*manager.settings.root, "burstable")).wanted)
        for one in pods:
            manager.create_pod(one)
            files = manager.pods.files(one)
            expected += sum(fresh[file] != text for file, text in files.items())
            now = manager.tree.group((*manager.settings.root, "burstable")).wanted
            expected += sum(level.get(file) != text for file, text in now.items())
            level = dict(now)
        written = manager.tree.writes - before
        found = len(manager.existing_pods())
        quiet = manager.reconcile()
        descriptors = len(manager.tree.descriptors)
        for one in pods:
            manager.remove_pod(one.uid)
        left = sum(
            len([d for d in os.scandir(h.path + root + "/kubepods") if d.is_dir()])
            for h in manager.mounts.hierarchies
        )
        return {
            "found": found,
            "written": written,
            "expected": expected,
            "quiet": quiet,
            "left": left,
            "levels": 2 * len(manager.mounts.hierarchies),
            "known": len(manager.tree.groups),
            "bounded": descriptors <= manager.tree.descriptors.limit,
        }


def leftovers(root: str) -> dict[str, Any]:
    """Return the refusal to remove a pod's group with a process in it, and the effect of removing it with
    `kill`."""
    with managed(root) as manager:
        one = burstable("b")
        manager.create_pod(one)
        pid = spawn(manager, make_container(manager, one), signal.pause)
        try:
            manager.remove_pod("b", kill=False)
            refused = ""
        except Refused as error:
            refused = str(error)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        manager.remove_pod("b", wait=5.0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return {
            "refused": refused,
            "pods": list(manager.existing_pods()),
            "alive": os.path.exists(f"/proc/{pid}"),
        }


def memory_qos(root: str) -> dict[str, Any]:
    """Return memory.low and memory.min with MemoryQoS and reserved requests, and after both are switched off
    (v2)."""
    one = burstable("b", "1", "16Mi")
    seen: dict[str, Any] = {}
    gates = {"MemoryQoS": True}
    manager = new_manager(root, feature_gates=gates, memory_reservation_policy="TieredReservation")
    manager.start()
    manager.create_pod(one)
    groups = [manager.settings.root, (*manager.settings.root, "burstable"), manager.pods.name(one)]
    seen["on"] = [manager.tree.read(name, "memory.low") for name in groups]
    seen["minimum"] = [manager.tree.read(name, "memory.min") for name in groups]
    seen["container"] = dict(manager.container_resources(one, one.spec.containers[0]).unified)
    manager.stop()
    with managed(root) as later:
        later.create_pod(one)
        seen["off"] = [later.tree.read(name, "memory.low") for name in groups]
        seen["container_off"] = dict(later.container_resources(one, one.spec.containers[0]).unified)
    with managed(root, feature_gates=gates) as unreserved:
        seen["unreserved"] = dict(unreserved.container_resources(one, one.spec.containers[0]).unified)
    return seen


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """Run `action` and return the errno, subject and message of its `Refused`; empty if it succeeds."""
    try:
        action()
    except Refused as error:
        return {"errno": error.errno, "subject": error.subject, "message": str(error)}
    return {}


def put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def start_and_stop(root: str, **config: Any) -> None:
    manager = new_manager(root, **config)
    try:
        manager.start()
    finally:
        manager.stop()


def remove(root: str) -> None:
    manager = new_manager(root)
    manager.remove_all()
    manager.stop()
