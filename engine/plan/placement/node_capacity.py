"""Choose a node by requests: the emptiest that fits (spread) or the fullest (pack).

`place` uses only this, because a trace holds nothing else. Elsewhere it applies to the nodes that
`constraints` leaves, and the scheduler's scores (`scores`) may choose instead.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from engine._fast.placement.node_amounts import sums_on_nodes
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.kept import once_per_snapshot

Rule = Literal["spread", "pack"]
MOST_REQUESTS: Final = 4
"""Requests whose fitting nodes are kept: pods that follow one another often have the same one."""


class NodeCapacity:
    """Track free amounts, int64[resources, nodes], and pod slots; `open` says which nodes may be used."""

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
        """Return the node for one pod among the `allowed` ones, -1 if it fits nowhere; the first node wins a
        tie.
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
        """Return bool[nodes]: the open nodes, among the `allowed` ones, with a slot and these amounts."""
        fits: NDArray[np.bool_] = self._fits(request) & self.open
        if allowed is not None:
            fits &= allowed
        return fits

    def _fits(self, request: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[nodes]: the nodes with a free slot and these amounts, open or not."""
        found = self._fitting.get(request.tobytes())
        if found is None:
            fits = self.slots > 0
            for resource in np.flatnonzero(request):
                fits &= self.free[resource] >= request[resource]
            while len(self._fitting) >= MOST_REQUESTS:
                del self._fitting[next(iter(self._fitting))]
            found = self._fitting[request.tobytes()] = request, fits
        return found[1]

    def take(self, node: int, request: NDArray[np.int64], sign: int = 1) -> None:
        """Book a request on a node, or release it with `sign` -1."""
        self.free[:, node] -= sign * request
        self.slots[node] -= sign
        for asked, fits in self._fitting.values():
            fits[node] = self.slots[node] > 0 and bool((self.free[:, node] >= asked)[asked > 0].all())


@once_per_snapshot
def requests_on_nodes(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return int64[resources, nodes]: the sums of requests."""
    return sums_on_nodes(snapshot.column("template"), snapshot.offsets, template_requests(snapshot))


def request_matrix(snapshot: Snapshot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[pods, resources]: the requests of the given pod rows."""
    matrix: NDArray[np.int64] = template_requests(snapshot)[snapshot.pods["template"].to_numpy()[rows]]
    return matrix


def template_requests(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return int64[templates, resources]."""
    columns = [snapshot.templates[f"request/{name}"].to_numpy() for name in snapshot.resources.names]
    return np.stack(columns, axis=1)


def largest_first(snapshot: Snapshot, requests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order in which pods are placed: by their largest share of an average node, ties in input
    order.
    """
    total = np.maximum(snapshot.tables.allocatable, 0).sum(axis=1)
    mean = np.maximum(total / max(snapshot.node_count, 1), 1.0)
    share = (requests / mean).max(axis=1) if len(requests) else np.zeros(0)
    return np.argsort(-share, kind="stable")
