"""Reads every group of the node once, for all who ask while it reads or right after."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine._fast.reading.groups import ABSENT
from engine.cri.records import ContainerRecord, PodRecord
from engine.node.usage.group import MOUNT, GroupSample, GroupTable, children, is_v1
from engine.node.usage.network import Interface, interfaces_of

SHARED_SECONDS = 1.0


@dataclass(slots=True)
class UsedGroup:
    """A group and whose it is: `owner` is the id of a container or sandbox, "" for others."""

    cgroup: str
    sample: GroupSample
    owner: str = ""
    container: ContainerRecord | None = None


@dataclass(slots=True)
class UsedPod:
    """`sandbox` is the id of the pod's sandbox, `network` empty for a pod of the host's network."""

    record: PodRecord
    group: UsedGroup
    containers: list[UsedGroup] = field(default_factory=list)
    sandbox: UsedGroup | None = None
    network: list[Interface] = field(default_factory=list)


@dataclass(slots=True)
class NodeUsage:
    """`time` is Unix seconds; `table` has all groups; `system` are the groups of the agent (`kubelet`), the
    runtime and all pods."""

    time: float
    table: GroupTable
    root: UsedGroup
    system: dict[str, UsedGroup]
    pods: list[UsedPod]
    network: list[Interface]


class UsageSampler:
    """`pods` are those that the runtime holds, `pod_cgroup` says where one's group is, `pods_root` where all
    are; `runtime` is the runtime's socket."""

    def __init__(
        self,
        *,
        pods: Callable[[], Iterable[PodRecord]],
        pod_cgroup: Callable[[str], str | None],
        pods_root: Callable[[], str | None],
        runtime: Path,
        clock: Callable[[], float],
        mount: Path = MOUNT,
    ) -> None:
        self._pods, self._pod_cgroup, self._pods_root = pods, pod_cgroup, pods_root
        self._runtime = runtime
        self._clock = clock
        self._mount = mount
        self._where: dict[str, str] = {}
        self._last: NodeUsage | None = None
        self._reading: asyncio.Task[NodeUsage] | None = None

    async def sample(self) -> NodeUsage:
        """What is used now, or was less than a second ago."""
        if self._last is not None and 0 <= self._clock() - self._last.time < SHARED_SECONDS:
            return self._last
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="usage")
        return await asyncio.shield(self._reading)

    async def _read(self) -> NodeUsage:
        try:
            places = [(record, self._pod_cgroup(record.uid)) for record in self._pods() if record.may_run]
            held = [(record, cgroup) for record, cgroup in places if cgroup is not None]
            self._last = await asyncio.to_thread(self._read_all, held, self._pods_root())
            return self._last
        finally:
            self._reading = None

    def _read_all(self, places: Sequence[tuple[PodRecord, str]], pods_root: str | None) -> NodeUsage:
        now = self._clock()
        table = GroupTable(self._last.table if self._last is not None else None, now)
        system = {
            "kubelet": own_cgroup("self"),
            "runtime": _cgroup_of_server(self._runtime),
            "pods": pods_root,
        }
        root = UsedGroup("/", table.add("/"))
        system_groups = {
            name: UsedGroup(cgroup, table.add(cgroup)) for name, cgroup in system.items() if cgroup
        }
        pods = [self._pod(record, cgroup, table) for record, cgroup in places]
        table.read(self._mount)
        there = (table.column("memory") != ABSENT).tolist()
        self._where = {
            group.owner: group.cgroup for group in _groups_of(pods) if group.owner and there[group.sample.row]
        }
        first_process = table.column("first_process").tolist()
        for pod in pods:
            if pod.record.sandbox is not None and not pod.record.sandbox.host_network:
                inside = [*filter(None, [pod.sandbox]), *pod.containers]
                pids = (first_process[group.sample.row] for group in inside)
                pod.network = next((interfaces_of(pid) for pid in pids if pid != ABSENT), [])
        return NodeUsage(now, table, root, system_groups, pods, interfaces_of("self"))

    def _pod(self, record: PodRecord, cgroup: str, table: GroupTable) -> UsedPod:
        """Its groups, of which those are looked for that nobody has seen before."""
        whole = table.add(cgroup)
        pod = UsedPod(record, UsedGroup(cgroup, whole))
        names: list[str] | None = None

        def used(owner: str, container: ContainerRecord | None = None) -> UsedGroup | None:
            nonlocal names
            place = self._where.get(owner)
            if place is None:
                if names is None:
                    names = list(children(cgroup, self._mount))
                name = next((name for name in names if owner in name), None)
                if name is None:
                    return None
                place = f"{cgroup}/{name}"
            return UsedGroup(place, table.add(place, whole), owner=owner, container=container)

        pod.containers = [group for each in record.may_run if (group := used(each.id, each)) is not None]
        if record.sandbox is not None:
            pod.sandbox = used(record.sandbox.id)
        return pod


def _groups_of(pods: Iterable[UsedPod]) -> Iterator[UsedGroup]:
    for pod in pods:
        yield pod.group
        yield from pod.containers
        if pod.sandbox is not None:
            yield pod.sandbox


def own_cgroup(pid: int | str) -> str | None:
    """The group of a process, where its memory is accounted."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    wanted = "memory" if is_v1() else ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(","):
            return path
    return None


def _cgroup_of_server(path: Path) -> str | None:
    """The group of the process that listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(1.0)
        try:
            asked.connect(str(path))
            credentials = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    return own_cgroup(struct.unpack("3i", credentials)[0])
