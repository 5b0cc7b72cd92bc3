"""Reads every cgroup of the node once for all callers that ask at about the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine._fast.reading.groups import ABSENT
from engine.cri.records import PodRecord
from engine.host.cgroupfs.mounts import Mounts, readable_mounts
from engine.node.nodeinfo.machine import memory_in_use
from engine.node.stats.filesystems import Filesystems
from engine.node.stats.group import PROC, Groups, GroupTable, children
from engine.node.stats.network import Interface, interfaces_of
from engine.node.stats.system import SystemGroups
from engine.node.stats.used import NodeUsage, UsedGroup, UsedPod

SHARED_SECONDS = 1.0

_Held = tuple[PodRecord, str, tuple[object, ...]]
"""A pod, its cgroup, and what the runtime reports about it."""


class UsageSampler:
    """Sample the usage of the node.

    `pods` are those in the runtime, `pod_cgroup` returns the cgroup of one, and `pods_root` is the parent of
    all; `runtime` is the runtime's socket.
    """

    def __init__(
        self,
        *,
        pods: Callable[[], Iterable[PodRecord]],
        pod_cgroup: Callable[[str], str | None],
        pods_root: Callable[[], str | None],
        runtime: Path,
        clock: Callable[[], float],
        mounts: Mounts | None = None,
        proc: Path = PROC,
    ) -> None:
        self._pods, self._pod_cgroup, self._pods_root = pods, pod_cgroup, pods_root
        self._runtime = runtime
        self._clock = clock
        self._mounts, self._proc = mounts or readable_mounts(), proc
        self._filesystems = Filesystems(proc)
        self._groups = Groups()
        # A reading and a count run in threads, and a caller that gives up does not end its thread.
        self._groups_lock = threading.Lock()
        self._root = UsedGroup("/", self._groups.add(["/"]))
        self._system = SystemGroups(self._groups)
        self._known: dict[str, UsedPod] = {}
        self._gone: set[str] = set()
        self._shown: tuple[UsedPod, ...] = ()
        self._last: NodeUsage | None = None
        self._reading: asyncio.Task[NodeUsage] | None = None

    async def sample(self, *, descriptors: bool = False) -> NodeUsage:
        """Return the usage now, or a reading that is less than a second old; with `descriptors`, after they
        have been counted too.
        """
        usage = self._last
        if usage is None or not 0 <= self._clock() - usage.time < SHARED_SECONDS:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read(), name="usage")
            # Several callers wait for one reading; one that gives up must not end it for the others.
            usage = await asyncio.shield(self._reading)
        if descriptors and not usage.table.counted:
            await asyncio.to_thread(self._count_descriptors, usage)
        return usage

    def _count_descriptors(self, usage: NodeUsage) -> None:
        with self._groups_lock:
            self._groups.count_descriptors(usage.table, self._mounts, self._proc)

    async def _read(self) -> NodeUsage:
        try:
            held, apart = self._held()
            self._last = await asyncio.to_thread(self._read_all, held, apart, self._pods_root())
            return self._last
        finally:
            self._reading = None

    def _held(self) -> tuple[list[_Held], bool]:
        """Return the pods with a cgroup that may run, and whether others run.

        A pod that was in the last reading and of which the runtime reports the same may still run.
        """
        held, apart = [], False
        for record in self._pods():
            cgroup = self._pod_cgroup(record.uid)
            if cgroup is None:
                apart = apart or bool(record.may_run)
            else:
                reported = (cgroup, *record.containers, *record.sandboxes)
                before = self._known.get(record.uid)
                if (before is not None and before.complete and before.reported == reported) or record.may_run:
                    held.append((record, cgroup, reported))
        return held, apart

    def _read_all(self, held: Sequence[_Held], apart: bool, pods_root: str | None) -> NodeUsage:
        now = self._clock()
        with self._groups_lock:
            self._system.update(self._runtime, pods_root, self._mounts)
            pods = self._place(held)
            table = self._groups.read(self._mounts, now)
        without_memory, without_cpu = (_without(pods, table, name) for name in ("memory", "cpu"))
        self._gone = without_memory
        return NodeUsage(
            now,
            table,
            self._root,
            self._system.groups,
            pods,
            interfaces_of("self"),
            memory_in_use(self._mounts),
            self._networks(table),
            apart or bool(without_memory or without_cpu) or not all(pod.complete for pod in pods),
            self._filesystems.read(now),
        )

    def _place(self, held: Sequence[_Held]) -> tuple[UsedPod, ...]:
        """Assign rows to the cgroups of each pod, the same as before if the runtime reports the
        same about it.
        """
        pods = tuple(self._pod(*each) for each in held)
        if len(pods) != len(self._known):
            here = {record.uid for record, _, _ in held}
            for uid in [uid for uid in self._known if uid not in here]:
                gone = self._known.pop(uid)
                self._groups.drop(gone.group.row, len(gone.groups))
        if pods != self._shown:
            self._shown = pods
        return self._shown

    def _pod(self, record: PodRecord, cgroup: str, reported: tuple[object, ...]) -> UsedPod:
        """Find the cgroups of a pod; only those that are new or gone are searched."""
        before = self._known.get(record.uid)
        lost = record.uid in self._gone
        same = before is not None and not lost and before.record is record and before.reported == reported
        if before is not None and same and before.complete:
            return before
        where = {} if before is None or lost else {group.owner: group.cgroup for group in before.groups}
        names: list[str] | None = None

        def place(owner: str) -> str | None:
            nonlocal names
            if owner not in where:
                names = list(children(cgroup, self._mounts)) if names is None else names
                # Runtimes name the cgroup of a container differently: `ID`, `cri-containerd-ID.scope`,
                # `crio-ID.scope`.
                name = next((name for name in names if owner in name), None)
                if name is None:
                    return None
                where[owner] = f"{cgroup}/{name}"
            return where[owner]

        inside = [(each.id, each, at) for each in record.may_run if (at := place(each.id)) is not None]
        sandbox_at = place(record.sandbox.id) if record.sandbox is not None else None
        cgroups = [cgroup, *(at for _, _, at in inside), *filter(None, [sandbox_at])]
        rows: dict[str, int] = {}
        if before is not None and same and cgroups == [group.cgroup for group in before.groups]:
            return before
        if before is not None:
            rows = {group.cgroup: group.row for group in before.groups}
            self._groups.drop(before.group.row, len(before.groups))
        first = self._groups.add(cgroups, rows)
        complete = len(inside) == len(record.may_run) and (record.sandbox is None or sandbox_at is not None)
        pod = self._known[record.uid] = UsedPod(
            record,
            UsedGroup(cgroup, first),
            [UsedGroup(at, first + 1 + row, owner, each) for row, (owner, each, at) in enumerate(inside)],
            None
            if sandbox_at is None or record.sandbox is None
            else UsedGroup(sandbox_at, first + 1 + len(inside), record.sandbox.id),
            reported,
            complete,
        )
        return pod

    def _networks(self, table: GroupTable) -> dict[str, Sequence[Interface]]:
        """Read the network counters; pods in which nothing ran keep most of theirs, because they have sent
        nothing.
        """
        before = self._last.networks if self._last is not None else {}
        first_process = table.column("first_process").tolist()
        found: dict[str, Sequence[Interface]] = {}
        for pod in self._shown:
            uid, sandbox = pod.record.uid, pod.record.sandbox
            if sandbox is None or sandbox.host_network:
                continue
            if not table.looked_at[pod.group.row] and uid in before:
                found[uid] = before[uid]
                continue
            inside = [*filter(None, [pod.sandbox]), *pod.containers]
            pids = (first_process[group.row] for group in inside)
            found[uid] = next((interfaces_of(pid) for pid in pids if pid != ABSENT), [])
        return found


def _without(pods: Sequence[UsedPod], table: GroupTable, name: str) -> set[str]:
    """Return the uids of pods with a container or sandbox whose cgroup lacks a number."""
    column = table.column(name).tolist()
    return {pod.record.uid for pod in pods for row in pod.inner_rows if column[row] == ABSENT}
