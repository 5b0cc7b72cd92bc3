"""Holds what pods use, as eviction weighs it. Plain values; `measure` fills them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from engine.api.pod import Pod
from engine.eviction.layout import Part
from engine.eviction.signals import INODES, MEMORY, PIDS
from engine.tables import PodTable
from engine.tables.eviction import Ranked, standing_of_pods, standing_order


class Disk(NamedTuple):
    """Hold bytes and inodes."""

    bytes: int = 0
    inodes: int = 0

    def plus(self, other: Disk) -> Disk:
        return Disk(self.bytes + other.bytes, self.inodes + other.inodes)


NO_DISK: Final = Disk()
_RANKED_BY: Final[Mapping[str, Ranked]] = {MEMORY: "memory", PIDS: "processes"}


class ContainerUsage(msgspec.Struct, frozen=True):
    """Hold the usage of one container; memory is its working set in bytes, None if unknown."""

    memory: int | None = None
    rootfs: Disk = NO_DISK
    logs: Disk = NO_DISK


class PodUsage(msgspec.Struct):
    """Hold the usage of one pod; None and missing entries are unknown.

    `volumes` are its local ephemeral volumes by name, `in_memory` its emptyDirs that use no disk; `hosts` is
    what the node writes for all its containers. The kernel counts volumes in `by_quota`.
    """

    memory: int | None = None
    processes: int | None = None
    containers: dict[str, ContainerUsage] = msgspec.field(default_factory=dict)
    volumes: dict[str, Disk] = msgspec.field(default_factory=dict)
    in_memory: dict[str, Disk] = msgspec.field(default_factory=dict)
    hosts: Disk = NO_DISK
    by_quota: list[str] = msgspec.field(default_factory=list)
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
    """List pods in the order of eviction, each with the amount that determines its place (None: no stats).

    `order` int32[n] are positions in `pods`; `amounts` int64[n] and `known` uint8[n].
    """

    def __init__(
        self,
        pods: Sequence[Pod],
        amounts: Sequence[int],
        known: Sequence[int],
        order: Sequence[int],
    ) -> None:
        self._pods, self._amounts, self._known, self._order = pods, amounts, known, order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[Pod, int | None]]:
        for position in self._order:
            yield self._pods[position], self._amounts[position] if self._known[position] else None


def rank(
    table: PodTable,
    pods: Sequence[Pod],
    usage: dict[str, PodUsage],
    resource: str,
    parts: Sequence[Part] = (),
) -> Ranking:
    """Rank pods. `resource` is the starved one; `parts` are what counts of the disk.

    Requests and priorities come from `table`, or from a pod's spec without a row.
    """
    by = _RANKED_BY.get(resource, "ephemeral-storage")
    if by == "ephemeral-storage":
        kept = table.look_up(pods, _on_disk(usage, resource, parts), "amount")
    else:
        kept = table.look_up(pods, usage, by)
    rows, amounts, known = kept
    order = standing_order(standing_of_pods(table, rows, pods, by), by, amounts, known)
    return Ranking(pods, amounts, known, order)


class _Amount(msgspec.Struct, frozen=True):
    amount: int | None


def _on_disk(usage: Mapping[str, PodUsage], resource: str, parts: Sequence[Part]) -> dict[str, _Amount]:
    """Return the pods' use of the disk: inodes or bytes."""
    read = attrgetter("inodes" if resource == INODES else "bytes")
    return {uid: _Amount(read(one.disk(parts)) if one.disk_known else None) for uid, one in usage.items()}
