"""Admit one pod on every node at once: amounts over columns, the other checks only where they can fail.

Amounts go through `engine.admission.everywhere`, the other checks through `engine.admission.predicates`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.admission.everywhere import Shortages, shortages_everywhere, used_on_each_node
from engine.admission.failures import Failure
from engine.admission.predicates import NodeFacts, UsedPorts, host_ports, other_failures, wrong_os
from engine.api.pod import Pod
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.kept import once_per_snapshot
from engine.plan.snapshot.node_labels import labels_of_nodes
from engine.plan.snapshot.objects import node_object, pods_of_node
from engine.tables import ClusterTables

FEW_PODS = 200_000
"""Below this, starting threads costs more than they save."""


class NodeUse:
    """Hold what pods use on each node of a snapshot: computed once, used for many pods.

    used int64[R, nodes]; count int64[nodes] pods; `threads` 0 is all.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tables: ClusterTables = snapshot.tables
        offsets = snapshot.offsets
        self.threads = 1 if snapshot.placed < FEW_PODS else 0
        self.used = used_on_each_node(self.tables, self.threads)
        self.count = np.diff(offsets)
        self.known = snapshot.nodes["known"].to_numpy(zero_copy_only=False)

    @cached_property
    def tainted(self) -> NDArray[np.bool_]:
        """Return bool[nodes]: nodes with NoExecute taints."""
        sets, codes = labels_of_nodes(self.snapshot).taint_sets
        repels = np.array([any(taint.effect == "NoExecute" for taint in taints) for taints in sets], bool)
        found: NDArray[np.bool_] = repels[codes]
        return found

    def facts(self, node: int) -> NodeFacts:
        return NodeFacts.of(node_object(self.snapshot, node))

    def ports(self, node: int) -> UsedPorts:
        used = UsedPorts()
        for pod in pods_of_node(self.snapshot, node):
            used.add(pod)
        return used


@once_per_snapshot
def node_use(snapshot: Snapshot) -> NodeUse:
    """Return the sums of a snapshot."""
    return NodeUse(snapshot)


class Fit(Shortages, frozen=True):
    """Hold the result of one pod against every node; `other` maps node → failures that more free resources
    would not cure.
    """

    other: dict[int, list[Failure]]

    def copies(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return int64[nodes]: how many copies of the pod fit by amounts, and which resource excludes the
        next one (an index of `resources`).
        """
        room = np.full(self.wanted.shape, np.iinfo(np.int64).max)
        np.floor_divide(np.maximum(self.free, 0), self.wanted, out=room, where=self.wanted > 0)
        fits: NDArray[np.int64] = room.min(axis=0)
        return fits, room.argmin(axis=0)


def fit(use: NodeUse, pod: Pod) -> Fit:
    """Check a pod, which is not in the snapshot, on every node."""
    short = shortages_everywhere(use.tables, pod, use.used, threads=use.threads)
    return Fit(short.resources, short.ids, short.wanted, short.free, short.missing, _others(use, pod))


def _others(use: NodeUse, pod: Pod) -> dict[int, list[Failure]]:
    """Return failures that depend on more than amounts; only nodes that can have one are examined."""
    snapshot = use.snapshot
    os_failure = wrong_os(pod)
    if os_failure is not None:
        return {node: [os_failure] for node in range(snapshot.node_count)}
    has_ports = any(True for _ in host_ports(pod))
    everywhere = bool(pod.spec.node_selector or pod.spec.affinity or pod.spec.node_name or has_ports)
    candidates = range(snapshot.node_count) if everywhere else np.flatnonzero(use.tainted).tolist()
    found = {}
    for node in candidates:
        ports = use.ports(node) if has_ports else UsedPorts()
        failures = other_failures(pod, use.facts(node), ports)
        if failures:
            found[node] = failures
    return found
