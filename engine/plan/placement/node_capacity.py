"""Track free amounts of nodes, and choose a node by requests: the emptiest that fits, or the fullest.

This is the filter NodeResourcesFit. `place` uses nothing else, because a trace holds requests only.
`scheduler` chooses among the nodes that pass the other filters, by scores or by requests.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from engine._fast.placement.node_amounts import sums_on_nodes
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.results import once_per_snapshot

Rule = Literal["spread", "pack"]
MAX_CACHED_REQUESTS: Final = 4
"""Requests whose feasible nodes are cached: successive pods often have equal requests."""


class NodeCapacity:
    """Track allocatable (`total`) and free amounts, int64[resources, nodes], and int64[nodes] free pod slots.

    `open` is bool[nodes]: the nodes that may take pods.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        names = snapshot.resources.names
        self.total = np.maximum(np.stack([snapshot.allocatable(name) for name in names]), 0)
        self.free: NDArray[np.int64] = self.total - requests_on_nodes(snapshot)
        counts = np.diff(snapshot.offsets)
        limit = snapshot.allocatable("pods")
        self.slots: NDArray[np.int64] = np.where(limit < 0, 2**40, limit) - counts
        self.open = ~snapshot.nodes["unschedulable"].to_numpy(zero_copy_only=False)
        self.open &= snapshot.nodes["known"].to_numpy(zero_copy_only=False)
        self._fitting: dict[bytes, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._scale = 1.0 / np.maximum(self.total[:2], 1)

    def choose(self, request: NDArray[np.int64], rule: Rule, allowed: NDArray[np.bool_] | None = None) -> int:
        """Return the emptiest ("spread") or fullest ("pack") node for one pod among the `allowed` ones, -1 if
        it fits nowhere. The first of equal nodes is chosen.

        The fullness of a node is the larger of its requested shares of CPU and memory (the first two
        resources), with this pod.
        """
        candidates = np.flatnonzero(self.fitting(request, allowed))
        if not len(candidates):
            return NO_NODE
        left = ((self.free[:2, candidates] - request[:2, None]) * self._scale[:, candidates]).min(axis=0)
        best = left.argmax() if rule == "spread" else left.argmin()
        return int(candidates[best])

    def fitting(
        self, request: NDArray[np.int64], allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Return bool[nodes]: the open nodes among the `allowed` ones with a free pod slot and these
        amounts.
        """
        fits: NDArray[np.bool_] = self._fits(request) & self.open
        if allowed is not None:
            fits &= allowed
        return fits

    def _fits(self, request: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[nodes]: the nodes with a free pod slot and these amounts, open or not."""
        found = self._fitting.get(request.tobytes())
        if found is None:
            fits = self.slots > 0
            for resource in np.flatnonzero(request):
                fits &= self.free[resource] >= request[resource]
            while len(self._fitting) >= MAX_CACHED_REQUESTS:
                del self._fitting[next(iter(self._fitting))]
            found = self._fitting[request.tobytes()] = request, fits
        return found[1]

    def update(self, node: int, request: NDArray[np.int64], sign: int = 1) -> None:
        """Add the request of a pod to a node, or remove it with `sign` -1."""
        self.free[:, node] -= sign * request
        self.slots[node] -= sign
        # One node has changed: to correct the cached nodes costs less than to compute them again, and with
        # so few amounts Python is faster than NumPy.
        free, slot = self.free[:, node].tolist(), self.slots[node] > 0
        for cached, fits in self._fitting.values():
            fits[node] = slot and all(
                left >= asked for left, asked in zip(free, cached.tolist(), strict=True) if asked
            )


@once_per_snapshot
def requests_on_nodes(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return int64[resources, nodes]: the sums of the requests of placed pods."""
    return sums_on_nodes(snapshot.column("template"), snapshot.offsets, template_requests(snapshot))


def request_matrix(snapshot: Snapshot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n, resources]: the requests of the pods in `rows`, int64[n]."""
    matrix: NDArray[np.int64] = template_requests(snapshot)[snapshot.pods["template"].to_numpy()[rows]]
    return matrix


def template_requests(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return int64[templates, resources]: the requests of a pod of each template."""
    columns = [snapshot.templates[f"request/{name}"].to_numpy() for name in snapshot.resources.names]
    return np.stack(columns, axis=1)


def largest_first(snapshot: Snapshot, requests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: the indices of `requests`, int64[n, resources], by the largest share of an average
    node's allocatable, largest first. Equal ones keep their order.
    """
    total = np.maximum(snapshot.tables.allocatable, 0).sum(axis=1)
    mean = np.maximum(total / max(snapshot.node_count, 1), 1.0)
    share = (requests / mean).max(axis=1) if len(requests) else np.zeros(0)
    return np.argsort(-share, kind="stable")
