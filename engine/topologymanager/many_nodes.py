"""Choosing the NUMA nodes that matter, on machines with too many nodes to list every set of them.

A kubelet lists 2^nodes sets for CPUs and for memory each, so that some tens of nodes never end. Most nodes of
such machines have nothing to give: memory of accelerators, for the most part. Sets are listed among the
nodes that have something of what is requested, and among the fullest `MOST` if even those are too many: the
answer is then a good place, and the best one among those nodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine._fast.devices import topology as kernels

MOST = 14
"""Nodes among which every set is listed; that takes about a millisecond."""


class PartialHints(Protocol):
    """One resource's hints, which can be listed among some of the nodes."""

    def weights(self) -> Sequence[int]:
        """How much each node could give, by position."""
        ...

    def among(self, positions: Sequence[int]) -> kernels.Flags:
        """Hints by mask of the given positions; shape (2^positions,)."""
        ...


def positions_that_matter(wanted: Sequence[PartialHints]) -> tuple[tuple[int, ...], bool]:
    """The positions to list sets among, ascending, and whether those are all that could give something."""
    ranked = []
    for hints in wanted:
        weights = hints.weights()
        ranked.append(sorted((i for i, weight in enumerate(weights) if weight), key=lambda i: -weights[i]))
    useful = {position for ranking in ranked for position in ranking}
    if len(useful) <= MOST:
        return tuple(sorted(useful)) or (0,), True
    chosen: dict[int, None] = {}
    for place in range(max(map(len, ranked))):
        for ranking in ranked:
            if place < len(ranking) and len(chosen) < MOST:
                chosen.setdefault(ranking[place])
    return tuple(sorted(chosen)), False


def narrowed(mask: int, positions: Sequence[int]) -> int | None:
    """A mask over all nodes as one over the given positions; None if it has others, too."""
    found = sum(1 << i for i, position in enumerate(positions) if mask >> position & 1)
    return found if found.bit_count() == mask.bit_count() else None


def widened(mask: int, positions: Sequence[int]) -> int:
    """The reverse of `narrowed`."""
    return sum(1 << position for i, position in enumerate(positions) if mask >> i & 1)
