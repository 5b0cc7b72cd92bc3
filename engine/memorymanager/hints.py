"""Finds the sets of NUMA nodes that can provide a container's memory: the memory manager's hints. Pure.

Source: kubelet v1.36 `memorymanager/policy_static.go`. A set of nodes is a mask of positions among the
machine's nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from engine._fast.devices import topology as kernels
from engine.memorymanager.state import NodeState
from engine.topologymanager.many_nodes import MOST, narrowed, positions_that_matter, widened
from engine.topologymanager.policy import DENSE_NODES, Hint, Numa

Reusable = Mapping[int, Mapping[str, int]]
"""Reusable bytes of earlier containers of the pod: mask of the nodes → type → bytes."""


class MemoryHints:
    """Enumerate sets of nodes that can provide `requests` (type → bytes).

    A set needs enough allocatable and enough free memory of each type, and none of its nodes may be in use
    alone or in another group. Preferred are the sets with the fewest nodes that would suffice on an empty
    machine.
    """

    def __init__(
        self, numa: Numa, nodes: Mapping[int, NodeState], requests: Mapping[str, int], reusable: Reusable
    ) -> None:
        self._requests = requests
        self._reusable = reusable
        self._numa = numa
        self._nodes = [nodes[node] for node in numa.nodes]

    @cached_property
    def flags(self) -> kernels.Flags:
        """Return the hints among all nodes; shape (2^nodes,). For machines with at most
        `DENSE_NODES` nodes.
        """
        return self.among(range(len(self._nodes)))

    def weights(self) -> list[int]:
        """Return how many bytes each node can provide; at least 1 if it could when empty.

        Such a node still counts for the smallest number of nodes that would suffice, and so for the
        preferred sets.
        """
        return [
            sum(node.free(kind) + (node.allocatable(kind) > 0) for kind in self._requests)
            for node in self._nodes
        ]

    def among(self, positions: Sequence[int]) -> kernels.Flags:
        """Return ORDINARY or PREFERRED for each mask of the positions that is a hint, else 0."""
        nodes = [self._nodes[position] for position in positions]
        count = len(nodes)
        sizes = _sizes(count)
        possible = np.ones(1 << count, bool)
        possible[0] = False
        enough = self._usable(positions)
        for kind, size in self._requests.items():
            possible &= _sums([node.allocatable(kind) for node in nodes]) >= np.uint64(size)
            free = _sums([node.free(kind) for node in nodes])
            for mask, left in self._reusable.items():
                part = narrowed(mask, positions)
                if part is not None:
                    free[part] += np.uint64(left.get(kind, 0))
            enough &= free >= np.uint64(size)
        fewest = min(int(sizes[possible].min(initial=count)), count)
        flags = np.zeros(1 << count, np.uint8)
        flags[possible & enough] = kernels.ORDINARY
        flags[possible & enough & (sizes == fewest)] = kernels.PREFERRED
        return flags

    def _usable(self, positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return which masks of the positions do not conflict with the current use of their nodes."""
        idle = 0
        groups: set[int] = set()
        usable = np.zeros(1 << len(positions), bool)
        for i, position in enumerate(positions):
            node = self._nodes[position]
            if not node.number_of_assignments:
                idle |= 1 << i
            if len(node.cells) > 1:
                groups.add(self._numa.mask(node.cells))
        masks = np.arange(len(usable))
        usable[(masks & ~idle) == 0] = True
        for group in groups:
            part = narrowed(group, positions)
            members = [self._nodes[i] for i in range(len(self._nodes)) if group >> i & 1]
            if part is not None:
                usable[part] = all(
                    not node.number_of_assignments or self._numa.mask(node.cells) == group for node in members
                )
        for i, position in enumerate(positions):
            usable[1 << i] = len(self._nodes[position].cells) <= 1
        return usable

    def best(self, containing: int = 0) -> Hint | None:
        """Return the preferred hint, or else any hint, with the fewest and lowest nodes; None without a hint.

        Its nodes include those of the mask `containing`.
        """
        positions: Sequence[int] = range(len(self._nodes))
        if len(positions) > DENSE_NODES:
            chosen, _ = positions_that_matter([self])
            wanted = [i for i in positions if containing >> i & 1][:MOST]
            positions = sorted({*wanted, *chosen[: max(MOST - len(wanted), 0)]})
        part = narrowed(containing, positions)
        flags = self.among(positions)
        masks = np.flatnonzero(flags)
        masks = masks[(masks & (part or 0)) == (part or 0)] if part is not None else masks[:0]
        preferred = masks[flags[masks] == kernels.PREFERRED]
        best = preferred if len(preferred) else masks
        if not len(best):
            return None
        sizes = _sizes(len(positions))[best]
        return Hint(widened(int(best[sizes == sizes.min()][0]), positions), bool(len(preferred)))


@cache
def _sizes(nodes: int) -> NDArray[np.int64]:
    """Return the number of nodes of each mask; shape (2^nodes,)."""
    sizes = np.zeros(1, np.int64)
    for _ in range(nodes):
        sizes = np.concatenate([sizes, sizes + 1])
    return sizes


def _sums(values: list[int]) -> NDArray[np.uint64]:
    """Return the sum of the values of each mask's nodes, modulo 2^64; shape (2^nodes,)."""
    sums = np.zeros(1, np.uint64)
    for value in values:
        sums = np.concatenate([sums, sums + np.uint64(value)])
    return sums
