"""Merges hints that are device counts on machines with more NUMA nodes than masks can be listed for.

Up to `policy.DENSE_NODES` (20) nodes the lattice kernels list every mask, and the result is always the
kubelet's. Beyond that, 2^nodes masks are too many, for the kubelet too, but the shape of device hints makes
listing unnecessary. Within the nodes that have devices of a resource, its hints are all masks that touch
every reusable device and enough available ones: if a mask is a hint, every larger one is too. So, within the
nodes that have devices of all resources,

- all of these nodes together are an intersection of hints, and "some hints of the resources intersect in
  exactly x" stays true when x grows. A merged mask that is not preferred has as many nodes as the largest of
  the resources' smallest hints, or the next possible number; only the choice of the nodes is open;
- "x is a hint of every resource" (the condition of a preferred merge) also stays true when x grows.

For both, the search finds the fittest mask of a given size under a condition that stays true when the mask
grows: it decides nodes from the highest down, first tries to leave a node out, and backtracks as soon as
even all undecided nodes together would not suffice. The first mask found is the lowest. With distances the
search continues and keeps the closest mask.

Finding a small set of nodes that serves several resources is a covering problem, which no bound on steps can
always solve. The search ends after `STEPS` steps (some tenths of a second), and its result is then not
`proven`. In any case:

- a proven result is the kubelet's, as if every mask were listed;
- a result is called preferred only if it is, so no policy admits a pod that the kubelet would reject;
- the mask is an intersection of hints, so it can provide every resource;
- for single-numa-node, every result is proven: there are no more masks than nodes.

Without proof, a closer, smaller or preferred mask may have been missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine._fast.devices import topology as kernels

STEPS = 8_000


class DeviceCounts(msgspec.Struct, frozen=True):
    """Count devices of one resource by the NUMA nodes that they are attached to, and the requested number.

    Group i is attached to the node positions in mask `groups[i]`. `everything`, `available` and `reusable`
    count its devices; a reusable group without nodes excludes every hint.
    """

    groups: tuple[int, ...]
    everything: tuple[int, ...]
    available: tuple[int, ...]
    reusable: tuple[int, ...]
    request: int

    def flags(self, nodes: int) -> kernels.Flags:
        """Return all hints, in the form that the kernels use; shape (2^nodes,)."""
        return kernels.generate(
            nodes,
            np.array(self.groups, np.uint64),
            _column(self.everything),
            _column(self.available),
            _column(self.reusable),
            self.request,
        )

    def weights(self, nodes: int) -> list[int]:
        """Return how many devices each node can provide, by position, and how many it has."""
        counts = [sum(each) for each in zip(self.everything, self.available, self.reusable, strict=True)]
        return [
            sum(n for group, n in zip(self.groups, counts, strict=True) if group >> i & 1)
            for i in range(nodes)
        ]

    def among(self, positions: Sequence[int]) -> kernels.Flags:
        """Return the hints among some positions only, by mask of those; shape (2^positions,)."""
        groups = tuple(
            sum(1 << i for i, position in enumerate(positions) if group >> position & 1)
            for group in self.groups
        )
        return replace(self, groups=groups).flags(len(positions))

    def within(self, nodes: int) -> int:
        """Return the nodes that hints consist of: those with devices, or all."""
        mask = 0
        for group, count in zip(self.groups, self.everything, strict=True):
            mask |= group if count else 0
        return mask & (1 << nodes) - 1 or (1 << nodes) - 1

    def enough(self, mask: int) -> bool:
        """Return whether `mask`, within the resource's nodes, is a hint."""
        return self.may_be_enough(mask, 0, 0)

    def may_be_enough(self, mask: int, undecided: int, more: int) -> bool:
        """Return whether `mask` and `more` of the `undecided` nodes could be a hint; never wrongly false."""
        found = 0
        for group, available, reusable in zip(self.groups, self.available, self.reusable, strict=True):
            if group & mask:
                found += available + reusable
            elif reusable and not (more and group & undecided):
                return False
        rest = [a + r for a, r in zip(self.available, self.reusable, strict=True)]
        return found + self._most(rest, mask, undecided, more) >= self.request

    def may_suffice(self, mask: int, undecided: int, more: int) -> bool:
        """Answer as `may_be_enough` does if every device were free and healthy."""
        found = sum(n for group, n in zip(self.groups, self.everything, strict=True) if group & mask)
        return found + self._most(self.everything, mask, undecided, more) >= self.request

    def cover(self, nodes: int, counts: Sequence[int]) -> int:
        """Return a small mask, not always the smallest, that meets the request from `counts` of the devices.

        Returns all of the resource's nodes if no smaller mask suffices.
        """
        # Greedy: it only bounds the search, which finds smaller ones.
        mask, undecided = 0, self.within(nodes)
        enough = self.may_suffice if counts is self.everything else self.may_be_enough
        if counts is not self.everything:
            for group, reusable in zip(self.groups, self.reusable, strict=True):
                touched = group & undecided if reusable and not group & mask else 0
                mask |= touched & -touched
            counts = [a + r for a, r in zip(self.available, self.reusable, strict=True)]
        while not enough(mask, 0, 0) and mask != undecided:
            gains = self._gains(counts, mask, undecided)
            mask |= max(gains, key=lambda node: (gains[node], -node)) if gains else undecided
        return mask or 1

    def _most(self, counts: Sequence[int], mask: int, undecided: int, more: int) -> int:
        """Return an upper bound of the devices outside `mask` that touch `more` of the undecided nodes."""
        return sum(sorted(self._gains(counts, mask, undecided).values(), reverse=True)[:more]) if more else 0

    def _gains(self, counts: Sequence[int], mask: int, undecided: int) -> dict[int, int]:
        """Count for each undecided node (as a mask) its devices that do not touch `mask`."""
        gains: dict[int, int] = {}
        for group, count in zip(self.groups, counts, strict=True):
            nodes = group & undecided if count and not group & mask else 0
            while nodes:
                lowest = nodes & -nodes
                gains[lowest] = gains.get(lowest, 0) + count
                nodes ^= lowest
        return gains


Condition = Callable[[int, int, int], bool]
"""`(mask, undecided, more)`: could `mask` and `more` of the undecided nodes suffice? Exact for more = 0."""


def _column(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.array(counts, np.int64)


class _Search(msgspec.Struct):
    """Search for masks within bounds; `left` is the number of remaining steps. Once `ended`, it finds nothing
    further.
    """

    nodes: int
    distances: kernels.Distances | None
    left: int = STEPS
    _best: int | None = None
    _distance: int = 0

    @property
    def ended(self) -> bool:
        return self.left < 0

    def fittest(self, size: int, may: Condition, within: int) -> int | None:
        """Return the fittest mask of `size` nodes `within` these nodes that suffices, or None."""
        self._best = None
        self._descend(self.nodes, size, 0, within, may)
        return self._best

    def smallest(self, may: Condition, known: int, within: int) -> int:
        """Return the smallest size of a sufficient mask, given one with `known` nodes; `known` if the search
        ends early.
        """
        # Only whether there is one: with distances, the search would go on after the first.
        by_distance, self.distances = self.distances, None
        size = next((n for n in range(1, known) if self.fittest(n, may, within) is not None), known)
        self.distances = by_distance
        return size

    def _descend(self, undecided: int, more: int, mask: int, within: int, may: Condition) -> bool:
        """Decide the `undecided` lowest nodes, the highest first; returns True to end the search."""
        self.left -= 1
        if self.ended:
            return True
        rest = (1 << undecided) - 1 & within
        if more > rest.bit_count() or not may(mask, rest, more):
            return False
        if more == 0:
            return self._take(mask)
        below = rest.bit_length() - 1
        return self._descend(below, more, mask, within, may) or self._descend(
            below, more - 1, mask | 1 << below, within, may
        )

    def _take(self, mask: int) -> bool:
        if self.distances is None:
            self._best = mask
            return True
        members = [i for i in range(self.nodes) if mask >> i & 1]
        distance = int(self.distances[np.ix_(members, members)].sum())
        if self._best is None or distance < self._distance:
            self._best, self._distance = mask, distance
        return False


class Merged(NamedTuple):
    """Hold the merged hint; `proven` if no search for it ended early."""

    mask: int
    preferred: bool
    proven: bool = True


def merge_counts(
    nodes: int,
    resources: Sequence[DeviceCounts | bool],
    distances: kernels.Distances | None,
    *,
    single: bool,
    steps: int = STEPS,
) -> Merged:
    """Merge as `engine._fast.devices.topology.merge` does.

    A resource that is True accepts any node; one that is False accepts none.
    """
    everywhere = (1 << nodes) - 1
    counted = [r for r in resources if isinstance(r, DeviceCounts) and r.enough(r.within(nodes))]
    somewhere = all(r is True or r in counted for r in resources)
    if somewhere and not counted:
        return Merged(everywhere, True)
    shared = everywhere
    for resource in counted:
        shared &= resource.within(nodes)
    if single:
        return _one_node(nodes, counted, shared) if somewhere else Merged(everywhere, False)
    if not counted:
        return Merged(everywhere, False)
    search = _Search(nodes, distances, steps)
    agreed = _preferred(search, counted, shared) if somewhere else None
    if agreed is not None:
        return Merged(agreed, True, not search.ended)
    if not shared:
        return Merged(everywhere, False)
    covers = [resource.cover(nodes, resource.available) for resource in counted]
    needs = [
        search.smallest(r.may_be_enough, cover.bit_count(), r.within(nodes))
        for r, cover in zip(counted, covers, strict=True)
    ]
    size = max(needs)

    def may_be_reached(mask: int, undecided: int, more: int) -> bool:
        return _reachable(mask | undecided if more else mask, nodes, counted, search)

    for count in range(min(size, shared.bit_count()), shared.bit_count() + 1):
        found = search.fittest(count, may_be_reached, shared)
        if found is not None:
            return Merged(found, False, not search.ended)
    return Merged(covers[needs.index(size)] & shared or shared, False, not search.ended)


def _one_node(nodes: int, resources: Sequence[DeviceCounts], shared: int) -> Merged:
    """Apply single-numa-node: return the first node that is a preferred hint of every resource."""
    alone = [1 << node for node in range(nodes)]
    if all(r.within(nodes) in alone or any(r.may_suffice(mask, 0, 0) for mask in alone) for r in resources):
        for mask in alone:
            if mask & shared and all(resource.enough(mask) for resource in resources):
                return Merged(mask, True)
    return Merged((1 << nodes) - 1, False)


def _preferred(search: _Search, resources: Sequence[DeviceCounts], shared: int) -> int | None:
    """Return the fittest mask that is a preferred hint of every resource, or None."""
    ideal = {
        search.smallest(
            r.may_suffice, r.cover(search.nodes, r.everything).bit_count(), r.within(search.nodes)
        )
        for r in resources
    }
    # The preferred hints of a resource all have its least number of nodes: with two numbers, none is common.
    if len(ideal) > 1 or search.ended:
        return None
    return search.fittest(ideal.pop(), lambda *state: all(r.may_be_enough(*state) for r in resources), shared)


def _reachable(mask: int, nodes: int, resources: Sequence[DeviceCounts], search: _Search) -> bool:
    """Return whether hints of the resources intersect in exactly `mask`, a subset of the nodes that they
    share.

    Each node outside the mask has to be left out of some resource's hint, so the nodes outside are
    distributed over the resources such that each hint remains sufficient.
    """
    if any(resource.enough(mask) for resource in resources):
        return True
    most = [resource.within(nodes) for resource in resources]
    outside = [1 << i for i in range(nodes) if not mask >> i & 1 and all(m >> i & 1 for m in most)]

    def deal(at: int, kept: list[int]) -> bool:
        search.left -= 1
        if search.ended:
            return False
        if at == len(outside):
            return True
        tried = set()
        for i, resource in enumerate(resources):
            without = kept[i] & ~outside[at]
            if (i, without) not in tried and resource.enough(without):
                tried.add((i, without))
                if deal(at + 1, [*kept[:i], without, *kept[i + 1 :]]):
                    return True
        return False

    return deal(0, most)
