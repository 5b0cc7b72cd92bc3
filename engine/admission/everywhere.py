"""Computes for every node of a cluster whether a pod fits, and which pods it would preempt. Pure.

The answer for each node is that of the node's own admission.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.preemption.predicates import request_sums, short_on_each_node
from engine._fast.preemption.preemption import victims_by_node
from engine.admission.predicates import NATIVE, is_counted
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.resources import PODS, is_extended, scaled
from engine.tables import ABSENT, PODS_ID, ClusterTables, requests_of


class Shortages(msgspec.Struct, frozen=True):
    """Hold the shortages of one pod on M nodes.

    resources  names in the order of the checks: pods, cpu, memory, ephemeral-storage, others by name
    ids        int32[k], their ids in the cluster: -1 for pods, beyond its last one for what no node has
    wanted     int64[k, M], what counts of the pod's requests there
    free       int64[k, M], negative where a node is overcommitted
    missing    int64[k, M], how much does not fit; 0: it does
    """

    resources: tuple[str, ...]
    ids: NDArray[np.int32]
    wanted: NDArray[np.int64]
    free: NDArray[np.int64]
    missing: NDArray[np.int64]


class Victims(msgspec.Struct, frozen=True):
    """List the pods that a pod preempts on each of M nodes.

    offsets  int64[M + 1], victims of node i are `rows[offsets[i]:offsets[i + 1]]`
    rows     int32[V], rows of the cluster's pod columns, in the order in which they are killed
    left     int64[k, M], what stays short without every pod that may be preempted; nobody is then
    """

    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]
    left: NDArray[np.int64]


def used_on_each_node(cluster: ClusterTables, threads: int = 0) -> NDArray[np.int64]:
    """Return the sums of requests, int64[R, M]. Raises `InvalidInput` if one exceeds 64 bits."""
    try:
        return request_sums(cluster.columns.requests, cluster.offsets, threads)
    except OverflowError as error:
        raise InvalidInput(str(error), subject="cluster") from None


def shortages_everywhere(
    cluster: ClusterTables, pod: Pod, used: NDArray[np.int64], *, threads: int = 0
) -> Shortages:
    """Return what each node lacks for a pod that is not in the cluster, considering resources only.

    `used` are the sums of `used_on_each_node`; `threads` 0 uses every core. A resource that no node has is
    missing entirely. Raises `InvalidInput` for bad amounts.
    """
    requests = {
        name: amount for name, amount in requests_of(pod).items() if name in NATIVE or is_counted(name)
    }
    overhead = {name: scaled(name, quantity) for name, quantity in (pod.spec.overhead or {}).items()}
    names = (PODS, *NATIVE, *sorted(requests.keys() - set(NATIVE)))
    count, nodes = len(cluster.allocatable), cluster.nodes
    pods = np.diff(cluster.offsets)
    ids = np.empty(len(names), np.int32)
    wanted = np.zeros((len(names), nodes), np.int64)
    free = np.zeros((len(names), nodes), np.int64)
    ids[0], wanted[0], free[0] = PODS_ID, 1, cluster.pod_limit - pods
    for index, name in enumerate(names[1:], 1):
        id = cluster.resources.find(name)
        # One past the last column stands for every resource that no node has.
        id = count if id is None else min(id, count)
        offered = cluster.allocatable[id] if id < count else np.full(nodes, ABSENT, np.int64)
        ids[index] = id
        wanted[index] = requests.get(name, 0)
        # As `removeMissingExtendedResources`: a cluster-level resource is unknown to nodes, and what
        # containers request of it does not count there; the overhead stays.
        if is_extended(name):
            wanted[index][offered == ABSENT] = overhead.get(name, 0)
        free[index] = np.maximum(offered, 0) - (used[id] if id < count else 0)
    listed = cluster.resources.names[:count]
    shortage = short_on_each_node(
        np.array([requests.get(name, 0) for name in listed], np.int64),
        np.array([overhead.get(name, 0) for name in listed], np.int64),
        np.array([is_extended(name) for name in listed], np.uint8),
        used,
        pods,
        cluster.allocatable,
        cluster.pod_limit,
        threads,
    )
    missing = wanted.copy()
    missing[ids < count] = shortage[:, ids[ids < count] + 1].T
    return Shortages(names, ids, wanted, free, missing)


def victims_everywhere(
    cluster: ClusterTables, pod: Pod, ids: NDArray[np.int32], needs: NDArray[np.int64], *, threads: int = 0
) -> Victims:
    """Return the pods that the kubelet's policy preempts on each node.

    `ids` int32[k] and `needs` int64[k, M] are what must be freed, as in `Shortages`. A node that needs
    nothing, or something that no node has, keeps all its pods.
    """
    columns = cluster.columns
    offered = ids < columns.resources
    unknown = needs[~offered]
    asked = np.where(unknown.any(axis=0), 0, needs[offered])
    offsets, rows, left_there = victims_by_node(
        columns.ranking,
        columns.qos,
        columns.flags,
        columns.priority,
        cluster.offsets,
        is_critical(pod),
        pod.spec.priority,
        np.ascontiguousarray(ids[offered]),
        np.ascontiguousarray(asked.T),
        threads,
    )
    left = needs.copy()
    left[offered] = left_there.T
    return Victims(offsets, rows, left)
