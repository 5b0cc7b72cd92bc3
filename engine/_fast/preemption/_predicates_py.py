"""Does a pod fit where, and how much is missing; the rule, in plain Python.

Source: kubelet v1.36 `lifecycle/predicate.go` and the scheduler's `noderesources.Fits`.

    wanted       int64[R]     a pod's requests by resource id; what is 0 always fits
    overhead     int64[R]     the part of `wanted` that is the pod's overhead
    droppable    uint8[R]     1 for extended resources: where a node does not name one, only overhead counts
    used         int64[R, M]  sums of the requests of each node's pods
    pods         int64[M]     how many pods each node has
    allocatable  int64[R, M]  -1 where the node does not name the resource
    pod_limit    int64[M]

A shortage is int64[R + 1]: places for pods first, then each resource by id; 0 where the pod fits.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**63 - 1

Int64s: TypeAlias = "NDArray[np.int64]"


def request_sums(requests: Int64s, offsets: Int64s, threads: int = 0) -> Int64s:
    """Return int64[R, M]: the total requests of each node's pods; node i has columns `offsets[i]` to
    `offsets[i + 1]` of `requests` (int64[R, N], not negative). Raise OverflowError beyond 64 bits.
    """
    nodes = len(offsets) - 1
    sums = np.zeros((len(requests), nodes), np.int64)
    for node in range(nodes):
        for resource in range(len(requests)):
            total = sum(requests[resource, offsets[node] : offsets[node + 1]].tolist())
            if total > LARGEST:
                raise OverflowError(f"the sum of resource {resource} on node {node} exceeds 64 bits")
            sums[resource, node] = total
    return sums


def short_on_each_node(
    wanted: Int64s,
    overhead: Int64s,
    droppable: NDArray[np.uint8],
    used: Int64s,
    pods: Int64s,
    allocatable: Int64s,
    pod_limit: Int64s,
    threads: int = 0,
) -> Int64s:
    """Check one pod on every node: return int64[M, R + 1], a shortage per node."""
    shortage = np.zeros((len(pods), len(wanted) + 1), np.int64)
    for node in range(len(pods)):
        shortage[node] = _short(
            wanted.tolist(),
            overhead.tolist(),
            droppable.tolist(),
            used[:, node].tolist(),
            int(pods[node]),
            allocatable[:, node].tolist(),
            int(pod_limit[node]),
        )
    return shortage


def _short(
    wanted: list[int],
    overhead: list[int],
    droppable: list[int],
    used: list[int],
    pods: int,
    allocatable: list[int],
    pod_limit: int,
) -> list[int]:
    shortage = [max(0, pods + 1 - pod_limit)]
    for resource, amount in enumerate(wanted):
        if droppable[resource] and allocatable[resource] < 0:
            amount = overhead[resource]
        missing = amount - (max(allocatable[resource], 0) - used[resource])
        shortage.append(min(missing, LARGEST) if amount > 0 and missing > 0 else 0)
    return shortage
