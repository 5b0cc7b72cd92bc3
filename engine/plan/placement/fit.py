"""Run the kubelet's admission of one pod on every node at once.

`engine.admission.everywhere` compares amounts over columns. `engine.admission.predicates` runs the other
checks (node name, OS, selectors, taints, host ports), and only on nodes where they can fail.
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
from engine.plan.snapshot.node_labels import labels_of_nodes
from engine.plan.snapshot.objects import node_object, pods_of_node
from engine.plan.snapshot.results import once_per_snapshot
from engine.tables import ClusterTables

SINGLE_THREAD_PODS = 200_000
"""Below this number of pods, starting threads costs more time than they save."""


class NodeUse:
    """Hold the requests on each node of a snapshot, computed once and compared with many pods.

    `used` is int64[resources, nodes]: sums of requests. `count` is int64[nodes]: pods. `known` is
    bool[nodes]: whether there is a Node object. `threads` is the number of threads of the kernels; 0 is one
    per CPU.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tables: ClusterTables = snapshot.tables
        offsets = snapshot.offsets
        self.threads = 1 if snapshot.placed < SINGLE_THREAD_PODS else 0
        self.used = used_on_each_node(self.tables, self.threads)
        self.count = np.diff(offsets)
        self.known = snapshot.nodes["known"].to_numpy(zero_copy_only=False)

    @cached_property
    def tainted(self) -> NDArray[np.bool_]:
        """Return bool[nodes]: the nodes with NoExecute taints, the only ones that a kubelet checks."""
        sets, codes = labels_of_nodes(self.snapshot).taint_sets
        repels = np.array([any(taint.effect == "NoExecute" for taint in taints) for taints in sets], bool)
        found: NDArray[np.bool_] = repels[codes]
        return found

    def facts(self, node: int) -> NodeFacts:
        """Return the labels and taints of a node as the predicates read them."""
        return NodeFacts.of(node_object(self.snapshot, node))

    def ports(self, node: int) -> UsedPorts:
        """Return the host ports that the pods of a node use."""
        used = UsedPorts()
        for pod in pods_of_node(self.snapshot, node):
            used.add(pod)
        return used


@once_per_snapshot
def node_use(snapshot: Snapshot) -> NodeUse:
    """Return the requests on the nodes of a snapshot."""
    return NodeUse(snapshot)


class Fit(Shortages, frozen=True):
    """Hold the result of one pod on every node. `other` maps a node to the failures that have nothing to do
    with amounts.
    """

    other: dict[int, list[Failure]]

    def copies(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return int64[nodes] twice: how many copies of the pod fit by amounts, and the index in `resources`
        of the one that excludes the next copy.
        """
        copies = np.full(self.wanted.shape, np.iinfo(np.int64).max)
        np.floor_divide(np.maximum(self.free, 0), self.wanted, out=copies, where=self.wanted > 0)
        fits: NDArray[np.int64] = copies.min(axis=0)
        return fits, copies.argmin(axis=0)


def fit(use: NodeUse, pod: Pod) -> Fit:
    """Return what admission on every node says of a pod that is not in the snapshot."""
    short = shortages_everywhere(use.tables, pod, use.used, threads=use.threads)
    other = _other_failures(use, pod)
    return Fit(short.resources, short.ids, short.wanted, short.free, short.missing, other)


def _other_failures(use: NodeUse, pod: Pod) -> dict[int, list[Failure]]:
    """Map a node to the failures that have nothing to do with amounts."""
    snapshot = use.snapshot
    os_failure = wrong_os(pod)
    if os_failure is not None:
        return {node: [os_failure] for node in range(snapshot.node_count)}
    has_ports = any(True for _ in host_ports(pod))
    everywhere = bool(pod.spec.node_selector or pod.spec.affinity or pod.spec.node_name or has_ports)
    # A pod without any of these can fail by a taint alone: no Node object of an untainted node is decoded.
    candidates = range(snapshot.node_count) if everywhere else np.flatnonzero(use.tainted).tolist()
    found = {}
    for node in candidates:
        ports = use.ports(node) if has_ports else UsedPorts()
        failures = other_failures(pod, use.facts(node), ports)
        if failures:
            found[node] = failures
    return found
