"""Admission of one pod on every node at once: amounts over columns, the other checks where they can fail.

Unusable go through the agent's batch kernel, the other checks through `engine.admission.predicates`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine._fast.predicates import short_on_each_node
from engine.admission.everywhere import used_on_each_node
from engine.admission.failures import Failure
from engine.admission.ports import UsedPorts, host_ports
from engine.admission.predicates import NodeFacts, counted_requests, is_counted, other_failures, wrong_os
from engine.api.pod import Pod
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, is_extended, pod_requests, scaled
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import node_object, pods_of_node
from engine.tables import ABSENT, PODS_ID, ClusterTables

FEW_PODS = 200_000
"""Below this, starting threads costs more than they save."""
_NATIVE = (CPU, MEMORY, EPHEMERAL_STORAGE)


class NodeUse:
    """What pods hold on each node, from a snapshot: made once, asked for many pods.

    used int64[R, nodes]; count int64[nodes] pods; `tainted` nodes with NoExecute taints; `threads` 0 is all.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tables: ClusterTables = snapshot.tables
        offsets = snapshot.offsets
        self.threads = 1 if snapshot.placed < FEW_PODS else 0
        self.used = used_on_each_node(self.tables, self.threads)
        self.count = np.diff(offsets)
        documents = snapshot.nodes["document"].to_pylist()
        self.tainted = np.array(['"NoExecute"' in text for text in documents], bool)
        self.known = snapshot.nodes["known"].to_numpy(zero_copy_only=False)

    def facts(self, node: int) -> NodeFacts:
        return NodeFacts.of(node_object(self.snapshot, node))

    def ports(self, node: int) -> UsedPorts:
        used = UsedPorts()
        for pod in pods_of_node(self.snapshot, node):
            used.add(pod)
        return used


def node_use(snapshot: Snapshot) -> NodeUse:
    """The snapshot's sums, made when first asked for and kept with it."""
    found: NodeUse | None = snapshot.__dict__.get("_node_use")
    if found is None:
        found = snapshot.__dict__["_node_use"] = NodeUse(snapshot)
    return found


@dataclass(frozen=True)
class Fit:
    """One pod against every node.

    resources  names in the order of the checks: pods, cpu, memory, ephemeral-storage, others by name
    ids        int32, their columns (-1 for pods)
    wanted     int64[k, nodes], free int64[k, nodes]; `missing` is how much does not fit (0: it does)
    other      node → what more room would not cure
    """

    resources: tuple[str, ...]
    ids: NDArray[np.int32]
    wanted: NDArray[np.int64]
    free: NDArray[np.int64]
    missing: NDArray[np.int64]
    other: dict[int, list[Failure]]


def fit(use: NodeUse, pod: Pod) -> Fit:
    """Check a pod, which is not in the snapshot, on every node."""
    snapshot, tables = use.snapshot, use.tables
    requests = {name: scaled(name, quantity) for name, quantity in pod_requests(pod).items()}
    others = sorted(n for n in requests if n not in (*_NATIVE, PODS) and is_counted(n))
    names = (PODS, *_NATIVE, *others)
    nodes = snapshot.node_count
    wanted = np.zeros((len(names), nodes), np.int64)
    free = np.zeros((len(names), nodes), np.int64)
    wanted[0], free[0] = 1, tables.pod_limit - use.count
    ids = [PODS_ID]
    for index, name in enumerate(names[1:], 1):
        number = snapshot.resources.find(name)
        offered = np.full(nodes, ABSENT, np.int64)
        used = np.zeros(nodes, np.int64)
        if number is not None and number < len(tables.allocatable):
            offered, used = tables.allocatable[number], use.used[number]
        ids.append(number if number is not None else len(snapshot.resources))
        wanted[index] = requests.get(name, 0)
        if name not in _NATIVE and is_extended(name):
            absent = counted_requests({name: requests[name]}, pod, {})
            wanted[index] = np.where(offered == ABSENT, absent.get(name, 0), wanted[index])
        free[index] = np.maximum(offered, 0) - used
    numbers = np.array(ids, np.int32)
    return Fit(names, numbers, wanted, free, _missing(use, pod, requests, numbers, wanted), _others(use, pod))


def _missing(
    use: NodeUse, pod: Pod, requests: dict[str, int], ids: NDArray[np.int32], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[k, nodes] by the agent's kernel; what the cluster has never heard of is missing whole."""
    tables, names = use.tables, use.snapshot.resources.names
    count = len(tables.allocatable)
    overhead = {name: scaled(name, quantity) for name, quantity in (pod.spec.overhead or {}).items()}
    counted = [name in _NATIVE or is_counted(name) for name in names]
    shortage = short_on_each_node(
        np.array([requests.get(n, 0) if c else 0 for n, c in zip(names, counted, strict=True)], np.int64),
        np.array([overhead.get(name, 0) for name in names], np.int64),
        np.array([is_extended(name) for name in names], np.uint8),
        use.used,
        use.count,
        tables.allocatable,
        tables.pod_limit,
        use.threads,
    )
    known = ids < count
    missing = wanted.copy()
    missing[known] = shortage[:, ids[known] + 1].T
    return missing


def _others(use: NodeUse, pod: Pod) -> dict[int, list[Failure]]:
    """Failures that depend on more than amounts; only nodes that can have one are looked at."""
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
