"""Order the pods of several nodes, one node after another, and compute first pods and running sums of all
nodes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.plan.snapshot.columns import Snapshot
from engine.tables import CRITICAL, MIRROR, STATIC
from engine.tables.eviction import Ranked, Standing, standing_order


@dataclass(frozen=True)
class PodsInOrder:
    """Hold ordered pods: `pods` int64[m] are rows of a snapshot; `counts` int64[n] is the number of each
    node's pods.
    """

    pods: NDArray[np.int64]
    counts: NDArray[np.int64]

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return int64[n]: where each node's pods begin."""
        return self.counts.cumsum() - self.counts

    @cached_property
    def node_of(self) -> NDArray[np.int64]:
        """Return int64[m]: each pod's node."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of(self, nodes: NDArray[np.int64]) -> PodsInOrder:
        """Return the pods of some nodes."""
        return self._select(self.offsets[nodes], self.counts[nodes])

    def first(self, most: NDArray[np.int64]) -> PodsInOrder:
        """Return at most this many of each node."""
        return self._select(self.offsets, np.minimum(self.counts, most))

    def among(self, nodes: NDArray[np.bool_]) -> PodsInOrder:
        """Drop nodes that have no pods here and are not among `nodes`."""
        return PodsInOrder(self.pods, self.counts[nodes])

    def where(self, kept: NDArray[np.bool_]) -> PodsInOrder:
        """Return some of the pods."""
        counts = np.bincount(self.node_of[kept], minlength=len(self.counts))
        return PodsInOrder(self.pods[kept], counts)

    def running(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[m]: sums from a node's first pod to each. Every node has pods."""
        sums, offsets = values.cumsum(), self.offsets
        before: NDArray[np.int64] = (sums[offsets] - values[offsets])[self.node_of]
        return sums - before

    def until(self, marked: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return int64[n]: the number of pods up to the first marked one, all if none is. Every
        node has pods.
        """
        number = np.arange(1, len(self.pods) + 1)
        first: NDArray[np.int64] = np.minimum.reduceat(
            np.where(marked, number, len(self.pods) + 1), self.offsets
        )
        until: NDArray[np.int64] = np.minimum(first - self.offsets, self.counts)
        return until

    def _select(self, offsets: NDArray[np.int64], counts: NDArray[np.int64]) -> PodsInOrder:
        ends = counts.cumsum()
        places = np.repeat(offsets - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
        return PodsInOrder(self.pods[places], counts)


class NodesPods:
    """Hold the pods of some nodes of a snapshot, as eviction takes them.

    Few nodes are short of anything: the requests of their pods are read, not the tables of all pods.
    """

    def __init__(self, snapshot: Snapshot, nodes: NDArray[np.int64], ranked: Ranked) -> None:
        self._snapshot, self._node_of = snapshot, snapshot.column("node")
        self._template, self._flags = snapshot.column("template"), snapshot.column("flags")
        self._offsets = snapshot.offsets[nodes]
        self._counts = snapshot.offsets[nodes + 1] - self._offsets
        self._nodes, self._ranked = nodes, ranked

    def in_order(
        self, usage: tuple[NDArray[np.int64], NDArray[np.uint8]], which: NDArray[np.int64]
    ) -> PodsInOrder:
        """Return the evictable pods of the nodes at these positions, ordered by use; no other
        node has any.
        """
        counts = np.zeros_like(self._counts)
        counts[which] = self._counts[which]
        ends = counts.cumsum()
        rows = np.repeat(self._offsets - (ends - counts), counts) + np.arange(int(counts.sum()))
        order = np.asarray(standing_order(self._standing(rows), self._ranked, usage[0][rows], usage[1][rows]))
        ranked = rows.take(order)
        flags = self._flags[ranked] | self._snapshot.templates["flags"].to_numpy()[self._template[ranked]]
        ranked = ranked[flags & (STATIC | MIRROR | CRITICAL) == 0]
        place = np.searchsorted(self._nodes, self._node_of[ranked])
        bits = len(ranked).bit_length()
        sorted_places = np.sort(place << bits | np.arange(len(ranked)))
        pods = ranked[sorted_places & ((1 << bits) - 1)]
        return PodsInOrder(pods, np.bincount(place, minlength=len(counts)))

    def _standing(self, rows: NDArray[np.int64]) -> Standing:
        """Return the standing of pods, int64[n] rows, in their order."""
        name = "memory" if self._ranked == "memory" else "ephemeral-storage"
        templates, template = self._snapshot.templates, self._template[rows]
        fraction = templates[f"fraction/{name}"].to_numpy()[template]
        return Standing(
            self._snapshot.column("priority")[rows],
            templates[f"ranking/{name}"].to_numpy()[template],
            fraction.astype(np.int32) if fraction.any() else None,
        )
