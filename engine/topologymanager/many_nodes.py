"""Selects the relevant NUMA nodes on machines with too many nodes to list every set of them.

A kubelet lists 2^nodes sets for CPUs and for memory, which takes forever with some tens of nodes. Most nodes
of such machines, such as the memory of accelerators, cannot provide the requested resource. Sets are listed
among the nodes that can, and among the fullest `MOST` of them if those are too many: then the result is the
best one among those nodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine._fast.devices import topology as kernels

MOST = 14
"""The number of nodes whose sets are all listed; that takes about a millisecond."""


class PartialHints(Protocol):
    """List hints of one resource for a subset of the nodes."""

    def weights(self) -> Sequence[int]:
        """Return how much each node can provide, by position."""
        ...

    def among(self, positions: Sequence[int]) -> kernels.Flags:
        """Return hints by mask of the given positions; shape (2^positions,)."""
        ...


def positions_that_matter(wanted: Sequence[PartialHints]) -> tuple[tuple[int, ...], bool]:
    """Return the positions to list sets of, ascending, and whether they include every node that can provide
    something.
    """
    ranked = []
    for hints in wanted:
        weights = hints.weights()
        ranked.append(sorted((i for i, weight in enumerate(weights) if weight), key=lambda i: -weights[i]))
    useful = {position for ranking in ranked for position in ranking}
    if len(useful) <= MOST:
        return tuple(sorted(useful)) or (0,), True
    chosen: dict[int, None] = {}
    # By turns, so that one resource with devices on many nodes leaves places for the others.
    for place in range(max(map(len, ranked))):
        for ranking in ranked:
            if place < len(ranking) and len(chosen) < MOST:
                chosen.setdefault(ranking[place])
    return tuple(sorted(chosen)), False


def narrowed(mask: int, positions: Sequence[int]) -> int | None:
    """Convert a mask over all nodes to one over the given positions; None if it includes other nodes."""
    found = sum(1 << i for i, position in enumerate(positions) if mask >> position & 1)
    # A part of a hint is no hint: the left-out nodes may have what it counts on.
    return found if found.bit_count() == mask.bit_count() else None


def widened(mask: int, positions: Sequence[int]) -> int:
    """Convert a mask over the given positions to one over all nodes."""
    return sum(1 << position for i, position in enumerate(positions) if mask >> i & 1)
