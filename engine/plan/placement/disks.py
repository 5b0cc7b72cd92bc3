"""Exclude nodes where another pod uses a disk of the pod spec: the filter VolumeRestrictions, v1.36.

Two pods of a node may share a GCE persistent disk, an iSCSI target or an RBD image only if both mount it
read-only, and an EBS volume never.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

import numpy as np

from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.inline_volumes import INLINE_VOLUME, ISCSI, RBD, InlineDisk, inline_disks
from engine.plan.snapshot.node_labels import Nodes

SHARED_BY_READERS: Final = ("gcePersistentDisk", ISCSI, RBD)
NEVER_SHARED: Final = "awsElasticBlockStore"


class ExclusiveDisks:
    """Count the pods that use each disk on each node while pods move.

    `claims` maps the row of a pod to the names of its volumes, separated by spaces.
    """

    def __init__(self, snapshot: Snapshot, claims: Mapping[int, str]) -> None:
        self._count = snapshot.node_count
        self._disks = {row: disks for row, text in claims.items() if (disks := _exclusive(text))}
        self._readers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._writers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        node = snapshot.column("node") if self._disks else ()
        for row in self._disks:
            if row < len(node):
                self.add_pod(row, int(node[row]))

    def add_pod(self, row: int, node: int) -> None:
        """Count the disks of a pod on a node, -1 for none."""
        self._update(row, node, 1)

    def remove_pod(self, row: int, node: int) -> None:
        """Stop counting the disks of a pod on a node."""
        self._update(row, node, -1)

    def _update(self, row: int, node: int, sign: int) -> None:
        if node != NO_NODE:
            for disk in self._disks.get(row, ()):
                self._users(disk)[node] += sign

    def filter(self, row: int) -> Nodes | None:
        """Return bool[nodes]: the nodes where no other pod uses the disks of this pod in a way that excludes
        it; None for a pod without such disks.
        """
        if row not in self._disks:
            return None
        found = np.ones(self._count, bool)
        for _, nodes in self.causes(row):
            found &= ~nodes
        return found

    def causes(self, row: int) -> Iterator[tuple[str, Nodes]]:
        """Yield each such disk of a pod by its name, and bool[nodes]: the nodes that it excludes."""
        for disk in self._disks.get(row, ()):
            others = [self._writers[disk.name]]
            if not disk.read_only:
                others.append(self._readers[disk.name])
            excluded = np.zeros(self._count, bool)
            excluded[[node for users in others for node, pods in users.items() if pods]] = True
            yield unquote(disk.name.removeprefix(INLINE_VOLUME)).replace("/", " ", 1), excluded

    def _users(self, disk: InlineDisk) -> Counter[int]:
        return (self._readers if disk.read_only else self._writers)[disk.name]


def _exclusive(claims: str) -> tuple[InlineDisk, ...]:
    """Return the disks of a pod to which the rule applies. A pod that mounts an EBS volume counts as a
    writer, so that no two pods share one.
    """
    return tuple(
        disk._replace(read_only=disk.read_only and disk.plugin in SHARED_BY_READERS)
        for disk in inline_disks(claims)
        if disk.plugin in (*SHARED_BY_READERS, NEVER_SHARED)
    )
