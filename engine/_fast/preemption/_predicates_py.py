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

from typing import Any, TypeAlias

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


class Ledger:
    """Track the total of rows of `requests` (int64[R, N], not negative) against limits.

    `used` (int64[R]) grows and shrinks with the rows that are added and removed; `limits` (int64[R]) is read
    at each question. Both and `requests` stay the caller's, arrays or other memory of that format. Raise
    `IndexError` for a row out of range.
    """

    def __init__(self, requests: Any, used: Any, limits: Any) -> None:
        if not len(requests) == len(used) == len(limits):
            raise ValueError("requests, used and limits must have as many resources")
        self.requests, self.used, self.limits = requests, used, limits

    def fits(self, row: int) -> bool:
        """Tell whether enough is left of every resource that a row requests."""
        return all(
            amount == 0 or amount <= limit - used
            for amount, used, limit in zip(
                self._row(row), self.used.tolist(), self.limits.tolist(), strict=True
            )
        )

    def add(self, row: int) -> bool:
        """Count a row. Return False and change nothing if a sum would exceed 64 bits."""
        sums = [used + amount for used, amount in zip(self.used.tolist(), self._row(row), strict=True)]
        if max(sums, default=0) > LARGEST:
            return False
        for id, total in enumerate(sums):
            self.used[id] = total
        return True

    def remove(self, row: int) -> None:
        """Subtract a row that was added."""
        for id, amount in enumerate(self._row(row)):
            self.used[id] -= amount

    def _row(self, row: int) -> list[int]:
        if not 0 <= row < self.requests.shape[1]:
            raise IndexError(f"row {row} of {self.requests.shape[1]}")
        return [int(self.requests[id, row]) for id in range(len(self.requests))]


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
