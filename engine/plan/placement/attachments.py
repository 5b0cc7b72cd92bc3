"""Limit how many volumes of a CSI driver a node attaches: NodeVolumeLimits, v1.36.

The limits are those of CSINodes. A volume that several pods of a node share counts once. An in-tree volume
counts for the CSI driver that replaces its plugin, also without a claim, and an ephemeral one for its pod.
Not counted, because a snapshot does not hold them: VolumeAttachments without a pod, and ephemeral volumes of
pods that are asked about and have no claim yet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.node_labels import Nodes


class AttachedVolume(NamedTuple):
    """Identify a volume by its driver and its handle there."""

    driver: str
    handle: str


class AttachLimits:
    """Count the volumes of each node while pods move; `volumes` holds those of every pod that has any."""

    def __init__(self, snapshot: Snapshot, volumes: Mapping[int, frozenset[AttachedVolume]]) -> None:
        self._volumes = volumes
        self._count = snapshot.node_count
        self._free = _limits(snapshot)
        self._users: defaultdict[AttachedVolume, Counter[int]] = defaultdict(Counter)
        if self._free:
            node = snapshot.column("node")
            for row in volumes:
                if row < len(node):
                    self.enter(row, int(node[row]))

    def enter(self, row: int, node: int) -> None:
        """Count the volumes of a pod on a node."""
        for volume in self._limited(row):
            users = self._users[volume]
            if node != NO_NODE and not users[node]:
                self._free[volume.driver][node] -= 1
            users[node] += 1

    def leave(self, row: int, node: int) -> None:
        """Count the volumes of a pod no longer."""
        for volume in self._limited(row):
            users = self._users[volume]
            users[node] -= 1
            if node != NO_NODE and not users[node]:
                self._free[volume.driver][node] += 1

    def allowed(self, row: int) -> Nodes:
        """Return the nodes that can attach all volumes of a pod which they do not have yet."""
        found = np.ones(self._count, bool)
        wanted: defaultdict[str, list[AttachedVolume]] = defaultdict(list)
        for volume in self._limited(row):
            wanted[volume.driver].append(volume)
        for driver, volumes in wanted.items():
            missing = np.full(self._count, len(volumes), np.int64)
            for volume in volumes:
                missing[[node for node, pods in self._users[volume].items() if pods and node != NO_NODE]] -= 1
            found &= (missing <= self._free[driver]) | (missing == 0)
        return found

    def _limited(self, row: int) -> Iterable[AttachedVolume]:
        return (volume for volume in self._volumes.get(row, ()) if volume.driver in self._free)


def _limits(snapshot: Snapshot) -> dict[str, NDArray[np.int64]]:
    """Return int64[nodes] for each driver: how many volumes a node attaches; a large number is no limit."""
    number = {name: row for row, name in enumerate(snapshot.node_names)}
    found: dict[str, NDArray[np.int64]] = {}
    for row in snapshot.attach_limits.to_pylist():
        limits = found.setdefault(row["driver"], np.full(snapshot.node_count, 2**40))
        if row["node"] in number:
            limits[number[row["node"]]] = row["limit"]
    return found
