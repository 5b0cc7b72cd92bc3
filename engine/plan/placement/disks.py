"""Keep pods apart that would write to one disk of a cloud without a claim: VolumeRestrictions, v1.36.

Two pods of a node may share a GCE disk only if both read it, and an EBS volume never. The same rule for iSCSI
and RBD is not applied, because a snapshot does not hold such volumes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

import numpy as np

from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.inline_volumes import InlineDisk, inline_disks
from engine.plan.snapshot.node_labels import Nodes

SHARED_BY_READERS: Final = "gcePersistentDisk"
NEVER_SHARED: Final = "awsElasticBlockStore"


class ExclusiveDisks:
    """Know the nodes of each disk while pods move; `claims` holds the names of the volumes of each pod."""

    def __init__(self, snapshot: Snapshot, claims: Mapping[int, str]) -> None:
        self._count = snapshot.node_count
        self._disks = {row: disks for row, text in claims.items() if (disks := _exclusive(text))}
        self._readers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._writers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        node = snapshot.column("node") if self._disks else ()
        for row in self._disks:
            if row < len(node):
                self.enter(row, int(node[row]))

    def enter(self, row: int, node: int, sign: int = 1) -> None:
        """Count the disks of a pod on a node, or no longer with `sign` -1."""
        if node != NO_NODE:
            for disk in self._disks.get(row, ()):
                self._users(disk)[node] += sign

    def leave(self, row: int, node: int) -> None:
        """Count the disks of a pod no longer."""
        self.enter(row, node, -1)

    def allowed(self, row: int) -> Nodes | None:
        """Return the nodes where no other pod keeps this one from its disks; None for a pod without such."""
        disks = self._disks.get(row)
        if disks is None:
            return None
        found = np.ones(self._count, bool)
        for disk in disks:
            others = [self._writers[disk.name]]
            if not disk.read_only:
                others.append(self._readers[disk.name])
            found[[node for users in others for node, pods in users.items() if pods]] = False
        return found

    def _users(self, disk: InlineDisk) -> Counter[int]:
        return (self._readers if disk.read_only else self._writers)[disk.name]


def _exclusive(claims: str) -> tuple[InlineDisk, ...]:
    """Return the disks among the volumes of a pod that it may have to itself; each pod that has an EBS volume
    counts as one that writes.
    """
    return tuple(
        disk._replace(read_only=disk.read_only and disk.plugin == SHARED_BY_READERS)
        for disk in inline_disks(claims)
        if disk.plugin in (SHARED_BY_READERS, NEVER_SHARED)
    )
