"""What pods use, as eviction weighs it. Plain values; who measures them is `measure`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.api.pod import Pod
from engine.eviction.layout import Part
from engine.eviction.signals import INODES, MEMORY, PIDS
from engine.tables import PodTable
from engine.tables.eviction import Ranked, standing_of_pods, standing_order


class Disk(NamedTuple):
    """Bytes and inodes."""

    bytes: int = 0
    inodes: int = 0

    def plus(self, other: Disk) -> Disk:
        return Disk(self.bytes + other.bytes, self.inodes + other.inodes)


NO_DISK: Final = Disk()
_UNKNOWN: Final = -1
_RANKED_BY: Final[Mapping[str, Ranked]] = {MEMORY: "memory", PIDS: "processes"}


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


class Ranking:
    """Pods in the order in which they would be evicted, each with the amount that put it there (None = no
    stats): `order` int32[n] are positions in `pods` and `amounts`."""

    def __init__(self, pods: Sequence[Pod], amounts: Sequence[int | None], order: NDArray[np.int32]) -> None:
        self._pods, self._amounts, self._order = pods, amounts, order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[Pod, int | None]]:
        for position in self._order:
            yield self._pods[position], self._amounts[position]


def rank(
    table: PodTable,
    pods: Sequence[Pod],
    usage: Mapping[str, PodUsage],
    resource: str,
    parts: Sequence[Part] = (),
) -> Ranking:
    """`resource` is the starved one; `parts` what counts of the disk. Requests and priorities come from
    `table`, or from a pod's spec where it has no row."""
    read = _reader(resource, parts)
    uids = [pod.metadata.uid for pod in pods]
    amounts = [read(one) if (one := usage.get(uid)) is not None else None for uid in uids]
    measured = np.array([_UNKNOWN if amount is None else amount for amount in amounts], np.int64)
    known = measured != _UNKNOWN
    by = _RANKED_BY.get(resource, "ephemeral-storage")
    order = standing_order(
        standing_of_pods(table, uids, pods, by), by, np.where(known, measured, 0), known.astype(np.uint8)
    )
    return Ranking(pods, amounts, order)


def _reader(resource: str, parts: Sequence[Part]) -> Callable[[PodUsage], int | None]:
    if resource == MEMORY:
        return attrgetter("memory")
    if resource == PIDS:
        return attrgetter("processes")
    if resource == INODES:
        return lambda usage: usage.disk(parts).inodes if usage.disk_known else None
    return lambda usage: usage.disk(parts).bytes if usage.disk_known else None
