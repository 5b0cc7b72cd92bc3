"""Limit how many volumes of a CSI driver a node attaches: the filter NodeVolumeLimits of the v1.36 scheduler.

The limits are those of CSINodes. A volume that several pods of a node share counts once. An in-tree volume
counts for the CSI driver that replaces its plugin, with or without a claim. An ephemeral volume counts for
its pod alone. A snapshot does not hold VolumeAttachments without a pod, nor claims of ephemeral volumes of
pods that do not exist yet, so these are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.node_labels import Nodes


class AttachedVolume(NamedTuple):
    """Identify a volume by its CSI driver and by the handle that this driver gives it."""

    driver: str
    handle: str


class AttachLimits:
    """Count the attached volumes of each node while pods move.

    `volumes` maps the row of a pod to its volumes.
    """

    def __init__(self, snapshot: Snapshot, volumes: Mapping[int, frozenset[AttachedVolume]]) -> None:
        self._volumes = volumes
        self._count = snapshot.node_count
        # `_free` is the limit minus the attached volumes. It may be negative: a limit may shrink below what
        # is attached already.
        self._limits = _limits(snapshot)
        self._free = {driver: limits.copy() for driver, limits in self._limits.items()}
        self._users: defaultdict[AttachedVolume, Counter[int]] = defaultdict(Counter)
        if self._free:
            node = snapshot.column("node")
            for row in volumes:
                if row < len(node):
                    self.add_pod(row, int(node[row]))

    def add_pod(self, row: int, node: int) -> None:
        """Attach the volumes of a pod to a node, -1 for none."""
        for volume in self._limited_volumes(row):
            users = self._users[volume]
            # Only the first pod of a node that uses a volume attaches it.
            if node != NO_NODE and not users[node]:
                self._free[volume.driver][node] -= 1
            users[node] += 1

    def remove_pod(self, row: int, node: int) -> None:
        """Detach the volumes of a pod that no other pod of the node uses."""
        for volume in self._limited_volumes(row):
            users = self._users[volume]
            users[node] -= 1
            if node != NO_NODE and not users[node]:
                self._free[volume.driver][node] += 1

    def filter(self, row: int) -> Nodes:
        """Return bool[nodes]: whether a node can attach all volumes of a pod that it has not attached yet."""
        found = np.ones(self._count, bool)
        for _, nodes in self._attachable(row):
            found &= nodes
        return found

    def causes(self, row: int) -> Iterator[tuple[str, Nodes]]:
        """Yield each driver with its limit, and bool[nodes]: the nodes with this limit that cannot attach the
        volumes of a pod.
        """
        for driver, nodes in self._attachable(row):
            limits = self._limits[driver]
            for limit in np.unique(limits[~nodes]).tolist():
                yield f"{driver}: at most {limit}", ~nodes & (limits == limit)

    def _attachable(self, row: int) -> Iterator[tuple[str, Nodes]]:
        """Yield each driver of a pod's volumes, and bool[nodes]: the nodes that can attach those volumes."""
        by_driver: defaultdict[str, list[AttachedVolume]] = defaultdict(list)
        for volume in self._limited_volumes(row):
            by_driver[volume.driver].append(volume)
        for driver, volumes in by_driver.items():
            missing = np.full(self._count, len(volumes), np.int64)
            for volume in volumes:
                missing[[node for node, pods in self._users[volume].items() if pods and node != NO_NODE]] -= 1
            # A node above its limit still takes a pod that needs no further attachment.
            yield driver, (missing <= self._free[driver]) | (missing == 0)

    def _limited_volumes(self, row: int) -> Iterable[AttachedVolume]:
        """Return the volumes of a pod whose driver has a limit on some node."""
        return (volume for volume in self._volumes.get(row, ()) if volume.driver in self._free)


def _limits(snapshot: Snapshot) -> dict[str, NDArray[np.int64]]:
    """Return int64[nodes] for each driver: how many volumes a node may attach, 2**40 without a limit."""
    node_rows = {name: row for row, name in enumerate(snapshot.node_names)}
    found: dict[str, NDArray[np.int64]] = {}
    for row in snapshot.attach_limits.to_pylist():
        limits = found.setdefault(row["driver"], np.full(snapshot.node_count, 2**40))
        if row["node"] in node_rows:
            limits[node_rows[row["node"]]] = row["limit"]
    return found
