"""What pods use, as eviction weighs it. Plain values; who measures them is `measure`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from engine.api.pod import Pod
from engine.eviction.layout import Part
from engine.eviction.signals import INODES, MEMORY, PIDS
from engine.tables import PodTable
from engine.tables.eviction import eviction_order


class Disk(NamedTuple):
    """Bytes and inodes."""

    bytes: int = 0
    inodes: int = 0

    def plus(self, other: Disk) -> Disk:
        return Disk(self.bytes + other.bytes, self.inodes + other.inodes)


NO_DISK: Final = Disk()


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """One container: memory is its working set in bytes, None if not known."""

    memory: int | None = None
    rootfs: Disk = NO_DISK
    logs: Disk = NO_DISK


@dataclass(slots=True)
class PodUsage:
    """One pod; None and absent entries are not known. `volumes` are its local ephemeral ones by name."""

    memory: int | None = None
    processes: int | None = None
    containers: dict[str, ContainerUsage] = field(default_factory=dict)
    volumes: dict[str, Disk] = field(default_factory=dict)
    disk_known: bool = False

    def disk(self, parts: Sequence[Part]) -> Disk:
        total = Disk()
        for container in self.containers.values():
            if "root" in parts:
                total = total.plus(container.rootfs)
            if "logs" in parts:
                total = total.plus(container.logs)
        if "volumes" in parts:
            for volume in self.volumes.values():
                total = total.plus(volume)
        return total


def rank(
    pods: Sequence[Pod],
    usage: Mapping[str, PodUsage],
    resource: str,
    parts: Sequence[Part] = (),
) -> list[tuple[Pod, int | None]]:
    """Pods, first to be evicted first, each with the amount that put it there (None = no stats).

    `resource` is the starved one; `parts` what counts of the disk.
    """
    read = _reader(resource, parts)
    amounts = [read(usage[pod.uid]) if pod.uid in usage else None for pod in pods]
    table = PodTable.from_pods(pods)
    ranked_by = {MEMORY: "memory", PIDS: "processes"}.get(resource, "ephemeral-storage")
    rows = np.array([table.row(pod.uid) for pod in pods], np.int32)
    order = eviction_order(
        table.columns,
        rows,
        ranked_by,  # type: ignore[arg-type]
        np.array([amount or 0 for amount in amounts], np.int64),
        np.array([amount is not None for amount in amounts], np.uint8),
    )
    place = {int(row): position for position, row in enumerate(rows)}
    return [(pods[place[int(row)]], amounts[place[int(row)]]) for row in order]


def _reader(resource: str, parts: Sequence[Part]) -> Callable[[PodUsage], int | None]:
    if resource == MEMORY:
        return lambda usage: usage.memory
    if resource == PIDS:
        return lambda usage: usage.processes
    if resource == INODES:
        return lambda usage: usage.disk(parts).inodes if usage.disk_known else None
    return lambda usage: usage.disk(parts).bytes if usage.disk_known else None
