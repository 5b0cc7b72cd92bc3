"""One pod on every node of a cluster, many pods on one node: the same answers as one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine._fast.predicates import request_sums, short_for_each_pod, short_on_each_node
from engine._fast.preemption import victims_by_node
from engine.admission.predicates import NodeFacts, is_counted
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, is_extended, scaled
from engine.tables import ABSENT, PODS_ID, ClusterTables, ResourceNames, requests_of

NOT_SHORT: Final = -2


@dataclass(frozen=True, slots=True)
class Everywhere:
    """Per node (M of them): does it take the pod, and at whose cost.

    fits            bool[M]          without preemption
    admits          bool[M]          at once or after preemption
    resources       int32[k]         resource ids in the order in which the kubelet checks them, -1 is `pods`
    missing         int64[M, k]      how much of each is missing
    first_short     int32[M]         the first resource that is short, NOT_SHORT (-2) where it fits
    victim_offsets  int64[M + 1]     victims of node i are `victims[victim_offsets[i]:victim_offsets[i + 1]]`
    victims         int32[V]         rows of the cluster's pod columns, in the order in which they are killed
    """

    fits: NDArray[np.bool_]
    admits: NDArray[np.bool_]
    resources: NDArray[np.int32]
    missing: NDArray[np.int64]
    first_short: NDArray[np.int32]
    victim_offsets: NDArray[np.int64]
    victims: NDArray[np.int32]


def used_on_each_node(cluster: ClusterTables, threads: int = 0) -> NDArray[np.int64]:
    """int64[R, M]: sums of requests. Raises `InvalidInput` where one exceeds 64 bits."""
    try:
        return request_sums(cluster.columns.requests, cluster.offsets, threads)
    except OverflowError as error:
        raise InvalidInput(str(error), subject="cluster") from None


def admit_everywhere(
    cluster: ClusterTables,
    pod: Pod,
    *,
    eligible: NDArray[np.bool_] | None = None,
    used: NDArray[np.int64] | None = None,
    preempting: bool | None = None,
    threads: int = 0,
) -> Everywhere:
    """What each node's admission would say of this pod, resources only.

    `eligible` bool[M] leaves out nodes whose other checks (affinity, taints, ports) fail: they neither fit
    nor preempt. `used` are the sums of `used_on_each_node` if the caller keeps them. `preempting` True or
    False overrides "critical pods preempt". `threads` 0 uses every core.
    Raises `InvalidInput` for bad amounts.
    """
    used = used_on_each_node(cluster, threads) if used is None else used
    count = cluster.columns.resources
    wanted, overhead, unknown = _amounts(pod, cluster.resources, count)
    shortage = short_on_each_node(
        wanted,
        overhead,
        _droppable(cluster.resources, count),
        used,
        np.diff(cluster.offsets),
        cluster.allocatable,
        cluster.pod_limit,
        threads,
    )
    order = checked_order(cluster.resources, count)
    missing = np.ascontiguousarray(shortage[:, order + 1])
    allowed = np.ones(cluster.nodes, np.bool_) if eligible is None else eligible
    allowed = allowed & (not unknown)
    short = missing > 0
    fits = ~short.any(axis=1) & allowed
    first = np.where(short.any(axis=1), order[short.argmax(axis=1)], NOT_SHORT).astype(np.int32)
    admits = fits
    offsets, victims = np.zeros(cluster.nodes + 1, np.int64), np.empty(0, np.int32)
    if is_critical(pod) if preempting is None else preempting:
        needs = np.where(allowed[:, None], missing, 0)
        columns = cluster.columns
        offsets, victims, left = victims_by_node(
            columns.ranking,
            columns.qos,
            columns.flags,
            columns.priority,
            cluster.offsets,
            is_critical(pod),
            pod.spec.priority,
            order,
            needs,
            threads,
        )
        admits = allowed & ~left.any(axis=1)
    return Everywhere(fits, admits, order, missing, first, offsets, victims)


def shortages_on(
    node: NodeFacts, used: dict[str, int], pods: int, candidates: Sequence[Pod], names: ResourceNames
) -> NDArray[np.int64]:
    """Many pods, each by itself, on one node: int64[P, R + 1], missing places then missing amounts by
    resource id. `names` is extended by what the pods ask for."""
    requests = [requests_of(pod) for pod in candidates]
    for name in [*node.allocatable, *(name for one in requests for name in one)]:
        names.intern(name)
    count = len(names)
    rows = [_amounts(pod, names, count) for pod in candidates]
    allocatable = np.full(count, ABSENT, np.int64)
    for name, amount in node.allocatable.items():
        allocatable[names.ids[name]] = amount
    return short_for_each_pod(
        np.array([wanted for wanted, _, _ in rows], np.int64).reshape(len(rows), count),
        np.array([overhead for _, overhead, _ in rows], np.int64).reshape(len(rows), count),
        _droppable(names, count),
        np.array([used.get(name, 0) for name in names.names], np.int64),
        pods,
        allocatable,
        node.pod_limit,
    )


def checked_order(names: ResourceNames, count: int) -> NDArray[np.int32]:
    """Resource ids as the checks go: pods, cpu, memory, ephemeral-storage, the others by name."""
    others = sorted(name for name in names.names[:count] if name not in (CPU, MEMORY, EPHEMERAL_STORAGE))
    ids = [PODS_ID, *(names.ids[name] for name in (CPU, MEMORY, EPHEMERAL_STORAGE, *others))]
    return np.array(ids, np.int32)


def _droppable(names: ResourceNames, count: int) -> NDArray[np.uint8]:
    return np.array([is_extended(name) for name in names.names[:count]], np.uint8)


def _amounts(pod: Pod, names: ResourceNames, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Wanted and overhead by resource id, and whether something is wanted that no node can have."""
    wanted, overhead = np.zeros(count, np.int64), np.zeros(count, np.int64)
    unknown = False
    for name, amount in requests_of(pod).items():
        if name not in (CPU, MEMORY, EPHEMERAL_STORAGE) and not is_counted(name):
            continue
        extra = (pod.spec.overhead or {}).get(name)
        id = names.find(name)
        if id is not None and id < count:
            wanted[id] = amount
            overhead[id] = scaled(name, extra) if extra is not None else 0
        elif not is_extended(name) or extra:
            unknown |= amount > 0
    return wanted, overhead, unknown
