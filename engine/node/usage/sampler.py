"""Reads every group of the node once, for all who ask while it reads or right after."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.cri.records import ContainerRecord, PodRecord
from engine.node.usage.group import MOUNT, GroupSample, children, first_process, is_v1, read_group
from engine.node.usage.network import Interface, interfaces_of

SHARED_SECONDS = 1.0
SHORTEST_RATE, LONGEST_RATE = 0.5, 600.0
NANO = 10**9


@dataclass(slots=True)
class UsedGroup:
    """A group and whose it is; `rate` is nanoseconds of CPU per second since it was read before."""

    cgroup: str
    sample: GroupSample
    rate: int | None = None
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
    """`time` is Unix seconds; `system` are the groups of the agent (`kubelet`), the runtime and all pods."""

    time: float
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
        self._before: dict[str, tuple[float, int]] = {}
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
        known, self._before = self._before, {}

        def used(cgroup: str, container: ContainerRecord | None = None) -> UsedGroup:
            sample = read_group(cgroup, self._mount)
            group = UsedGroup(cgroup, sample, container=container)
            if sample.cpu is not None:
                self._before[cgroup] = (now, sample.cpu)
                if cgroup in known:
                    group.rate = _rate(known[cgroup], (now, sample.cpu))
            return group

        system = {
            "kubelet": own_cgroup("self"),
            "runtime": _cgroup_of_server(self._runtime),
            "pods": pods_root,
        }
        return NodeUsage(
            now,
            used("/"),
            {name: used(cgroup) for name, cgroup in system.items() if cgroup},
            [self._pod(record, cgroup, used) for record, cgroup in places],
            interfaces_of("self"),
        )

    def _pod(self, record: PodRecord, cgroup: str, used: Callable[..., UsedGroup]) -> UsedPod:
        pod = UsedPod(record, used(cgroup))
        names = list(children(cgroup, self._mount))
        for container in record.may_run:
            name = next((name for name in names if container.id in name), None)
            if name is not None:
                pod.containers.append(used(f"{cgroup}/{name}", container))
        sandbox = record.sandbox
        if sandbox is not None:
            name = next((name for name in names if sandbox.id in name), None)
            if name is not None:
                pod.sandbox = used(f"{cgroup}/{name}")
            if not sandbox.host_network:
                inside = [*filter(None, [pod.sandbox]), *pod.containers]
                pids = (first_process(group.cgroup, self._mount) for group in inside)
                pod.network = next((interfaces_of(pid) for pid in pids if pid is not None), [])
        return pod


def _rate(before: tuple[float, int], now: tuple[float, int]) -> int | None:
    seconds, used = now[0] - before[0], now[1] - before[1]
    if not SHORTEST_RATE <= seconds <= LONGEST_RATE or used < 0:
        return None
    return int(used / seconds)


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
