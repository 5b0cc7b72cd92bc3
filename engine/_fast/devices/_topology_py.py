"""State the rule of the NUMA hint kernels (kubelet v1.36, `topologymanager` and the device hint generator).

NUMA nodes are positions 0..nodes-1; a set of nodes is an integer mask. The hints of one resource are an
array of 2^nodes flags indexed by mask, any of `ORDINARY` and `PREFERRED`. A separate value marks a resource
without a preference or without any hint: `ANY_NODE` or `NOWHERE` (`NO_MASK` if neither).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

ORDINARY = 1
PREFERRED = 2
NO_MASK = -1
NOWHERE = 0
ANY_NODE = 1

Flags: TypeAlias = "NDArray[np.uint8]"
Distances: TypeAlias = "NDArray[np.int64]"
Family = tuple[Flags, int]


def generate(
    nodes: int,
    groups: NDArray[np.uint64],
    everything: NDArray[np.int64],
    available: NDArray[np.int64],
    reusable: NDArray[np.int64],
    request: int,
) -> Flags:
    """Generate hints for `request` devices. Group i is the devices attached to exactly the nodes `groups[i]`;
    `everything`, `available` and `reusable` count its devices, shape (groups,).

    Masks contain only nodes that a device is attached to, or all nodes if none is. A non-empty mask is a
    hint if every reusable device touches it, and reusable and available devices touching it are enough. It
    is preferred if no smaller mask has enough devices of any state. Source: kubelet v1.36.
    """

    def touching(mask: int, counts: NDArray[np.int64]) -> int:
        return sum(int(n) for group, n in zip(groups.tolist(), counts.tolist(), strict=True) if group & mask)

    flags = np.zeros(1 << nodes, np.uint8)
    within = 0
    for group, count in zip(groups.tolist(), everything.tolist(), strict=True):
        within |= group if count else 0
    within = within & (1 << nodes) - 1 or (1 << nodes) - 1
    smallest = within.bit_count()
    masks = [mask for mask in range(1, 1 << nodes) if not mask & ~within]
    for mask in masks:
        if touching(mask, everything) >= request:
            smallest = min(smallest, mask.bit_count())
    for mask in masks:
        if touching(mask, reusable) < reusable.sum():
            continue
        if touching(mask, reusable) + touching(mask, available) >= request:
            flags[mask] = PREFERRED if mask.bit_count() == smallest else ORDINARY
    return flags


def merge(nodes: int, families: Sequence[Family], distances: Distances | None) -> tuple[int, bool]:
    """Return the best of all ways to take one hint per resource: (mask, preferred).

    Taking hints means intersecting their masks; the result is preferred if each hint is and all masks are
    equal. Empty intersections do not count. Preferred beats not preferred. Among preferred results the
    fittest wins; otherwise one with as many nodes as the neediest resource's smallest hint, or fewer but as
    many as possible, or more but as few as possible. Fitter is fewer nodes, then, if `distances` are given,
    a smaller average distance, then the smaller mask. Returns all nodes, not preferred, if none counts.
    """
    everywhere = (1 << nodes) - 1

    def fitness(mask: int) -> tuple[int, int, int]:
        members = [i for i in range(nodes) if mask >> i & 1]
        far = 0 if distances is None else sum(int(distances[i, j]) for i in members for j in members)
        return mask.bit_count(), far, mask

    choices: list[list[tuple[int | None, bool]]] = []
    target = 0
    for flags, opinion in families:
        hints: list[tuple[int | None, bool]] = []
        for mask in np.flatnonzero(flags).tolist():
            hints += [(mask, bool(bit & PREFERRED)) for bit in (ORDINARY, PREFERRED) if flags[mask] & bit]
        target = max(target, min((mask.bit_count() for mask, _ in hints if mask is not None), default=0))
        if opinion != NO_MASK:
            hints.append((None, opinion == ANY_NODE))
        choices.append(hints)

    def rank(mask: int, preferred: bool) -> tuple[int, ...]:
        size = mask.bit_count()
        if preferred:
            return (0, 0, 0, *fitness(mask))
        if size <= target:
            return (1, 0, target - size, *fitness(mask))
        return (1, 1, 0, *fitness(mask))

    found: set[tuple[int, bool]] = set()
    for taken in product(*choices):
        masks = [mask for mask, _ in taken if mask is not None]
        merged = everywhere
        for mask in masks:
            merged &= mask
        if merged:
            found.add((merged, all(preferred for _, preferred in taken) and len(set(masks)) <= 1))
    return min(found, key=lambda hint: rank(*hint), default=(everywhere, False))
