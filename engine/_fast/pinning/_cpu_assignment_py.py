"""The rule by which exclusive CPUs are chosen (kubelet v1.36, `cpumanager/cpu_assignment.go`).

A set of CPUs is an integer with bit N for CPU N. A `Layout` names the CPUs of each core, cache, socket and
NUMA node. Lists of these are sorted by how many of their CPUs are free, then by id.

Unlike the kubelet, nothing is ever taken that is not free: it sizes cores and sockets by averages, so that
with some SMT siblings offline half a core can look like a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import inf, sqrt

EXHAUSTIVE_NODES = 8
"""As many NUMA nodes are tried in every combination, as the kubelet does with any number."""


class Layout:
    """Hold a machine's online CPUs by core, last-level cache, socket and NUMA node: id → set of CPUs.

    Sets of one level do not overlap. Raises `ValueError` without CPUs or without members of some level.
    """

    def __init__(
        self,
        cores: Mapping[int, int],
        caches: Mapping[int, int],
        sockets: Mapping[int, int],
        nodes: Mapping[int, int],
    ) -> None:
        self.cores, self.caches, self.sockets, self.nodes = cores, caches, sockets, nodes
        self.cpus = 0
        for members in cores.values():
            self.cpus |= members
        if not self.cpus or not (caches and sockets and nodes):
            raise ValueError("a layout needs CPUs, and members of each level")
        count = self.cpus.bit_count()
        self.per_core = count // len(cores)
        self.per_cache = count // len(caches)
        self.per_socket = count // len(sockets)
        self._cores_in: dict[int, dict[int, int]] = {}

    def cores_in(self, region: int) -> Mapping[int, int]:
        """Return the cores that have CPUs in a set, by id."""
        found = self._cores_in.get(region)
        if found is None:
            found = {core: cpus for core, cpus in self.cores.items() if cpus & region}
            self._cores_in[region] = found
        return found


def take_packed(
    layout: Layout, available: int, count: int, *, spread: bool = False, whole_caches: bool = False
) -> int:
    """Choose `count` of the `available` CPUs, as close together as possible; all of them if they are fewer.

    Whole NUMA nodes and sockets come first, the larger kind before the smaller; then, with `whole_caches`,
    as few caches as possible; then whole cores, unless CPUs are to `spread` over cores; then single CPUs.
    """
    taking = _Taking(layout, available, count)
    levels = [taking.take_nodes, taking.take_sockets]
    if not taking.nodes_first:
        levels.reverse()
    if whole_caches:
        levels.append(taking.take_caches)
    if not spread:
        levels.append(taking.take_cores)
    for take_level in levels:
        if not taking.needed:
            break
        take_level()
    if taking.needed:
        taking.take_single(spread)
    return taking.taken


class _Taking:
    """Track one choice: what is still free, what is taken, how many more are needed."""

    def __init__(self, layout: Layout, available: int, count: int) -> None:
        self._layout = layout
        self.free = available & layout.cpus
        self.taken = 0
        self.needed = count
        self.nodes_first = len(layout.sockets) >= len(layout.nodes)

    def _take(self, cpus: int) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.needed -= cpus.bit_count()

    def _take_whole(self, candidates: Iterable[int]) -> None:
        """Take each set that is still free and not more than is needed."""
        for cpus in candidates:
            if cpus & ~self.free == 0 and cpus.bit_count() <= self.needed:
                self._take(cpus)

    def _sorted(self, level: Mapping[int, int], within: int = -1) -> list[int]:
        """Return the ids with a free CPU in `within`, those with the fewest free CPUs first."""
        free = self.free
        wanted = free & within
        return sorted(
            (one for one, cpus in level.items() if cpus & wanted),
            key=lambda one: ((level[one] & free).bit_count(), one),
        )

    def sorted_nodes(self) -> list[int]:
        layout = self._layout
        if self.nodes_first:
            return self._sorted(layout.nodes)
        sockets = self._sorted(layout.sockets)
        found = [node for socket in sockets for node in self._sorted(layout.nodes, layout.sockets[socket])]
        return list(dict.fromkeys(found))  # a node with CPUs on two sockets has them to give once

    def _sorted_sockets(self) -> list[int]:
        layout = self._layout
        if not self.nodes_first:
            return self._sorted(layout.sockets)
        nodes = self._sorted(layout.nodes)
        return [socket for node in nodes for socket in self._sorted(layout.sockets, layout.nodes[node])]

    def _sorted_cores(self) -> list[int]:
        layout = self._layout
        regions = (
            [layout.sockets[socket] for socket in self._sorted_sockets()]
            if self.nodes_first
            else [layout.nodes[node] for node in self.sorted_nodes()]
        )
        return [core for region in regions for core in self._sorted(layout.cores_in(region), region)]

    def _sorted_caches(self) -> list[int]:
        layout = self._layout
        return [
            cache for node in self.sorted_nodes() for cache in self._sorted(layout.caches, layout.nodes[node])
        ]

    def take_nodes(self) -> None:
        self._take_whole([self._layout.nodes[node] for node in self.sorted_nodes()])

    def take_sockets(self) -> None:
        layout = self._layout
        found = [layout.sockets[socket] for socket in self._sorted_sockets()]
        self._take_whole([cpus for cpus in found if cpus.bit_count() == layout.per_socket])

    def take_cores(self) -> None:
        layout = self._layout
        found = [layout.cores[core] for core in self._sorted_cores()]
        self._take_whole([cpus for cpus in found if cpus.bit_count() == layout.per_core])

    def take_caches(self) -> None:
        """Take whole caches while that many CPUs are needed, then the first cache that the rest fits into."""
        layout = self._layout
        for cache in self._sorted_caches():
            if self.needed >= layout.per_cache:
                self._take_whole([layout.caches[one] for one in self._sorted_caches()])
            if self.needed:
                self._take_part(layout.caches[cache])
            if not self.needed:
                return

    def _take_part(self, cache: int) -> None:
        """Take the needed CPUs from one cache, in order of core, if that many are free there."""
        layout = self._layout
        wanted = -(-self.needed // layout.per_core)
        cores = sorted(core for core, cpus in layout.cores.items() if cpus & cache & self.free)[:wanted]
        found = 0
        for core in cores:
            found |= layout.cores[core] & self.free
        if self.needed % 2 and layout.per_core > 1 and found.bit_count() > self.needed:
            found ^= 1 << found.bit_length() - 1
        if found.bit_count() == self.needed:
            self._take(found)

    def take_single(self, spread: bool) -> None:
        layout = self._layout
        regions = (
            [layout.sockets[socket] for socket in self._sorted_sockets()]
            if spread
            else [layout.cores[core] for core in self._sorted_cores()]
        )
        for region in regions:
            for cpu in _each(region & self.free):
                if not self.needed:
                    return
                self._take(cpu)


def _each(cpus: int) -> Iterator[int]:
    """Return each CPU of a set, as a set of one, in ascending order."""
    while cpus:
        lowest = cpus & -cpus
        yield lowest
        cpus ^= lowest


def take_distributed(layout: Layout, available: int, count: int, group: int, *, spread: bool = False) -> int:
    """Choose `count` CPUs evenly from as few NUMA nodes as possible (KEP-2902), in groups of `group`.

    Among sets of nodes of one size, the one wins that leaves free CPUs most evenly spread over the nodes.
    Falls back to `take_packed` where the count is no multiple of the group, or no even split exists.
    """
    if group < 1:
        raise ValueError(f"group size {group}: expected 1 or more")
    if not count or count % group:
        return take_packed(layout, available, count, spread=spread)
    taking = _Taking(layout, available, count)
    nodes = taking.sorted_nodes()
    free = {node: (layout.nodes[node] & taking.free).bit_count() for node in nodes}
    groups_of_machine = -(-layout.cpus.bit_count() // group)
    groups_per_node = -(-groups_of_machine // len(layout.nodes))
    fewest = -(-(count // group) // groups_per_node)
    for size in range(fewest, min(count // group, len(nodes)) + 1):
        share = count // size // group * group
        split = _most_even_split(nodes, free, size, share, count - share * size, group)
        if split is None:
            continue
        chosen, extra = split
        for node in chosen:
            taking._take(take_packed(layout, layout.nodes[node] & taking.free, share, spread=spread))
        while taking.needed:
            for node in extra:
                if taking.needed and (layout.nodes[node] & taking.free).bit_count() >= group:
                    part = take_packed(layout, layout.nodes[node] & taking.free, group, spread=spread)
                    taking._take(part)
        return taking.taken
    return take_packed(layout, available, count, spread=spread)


def _most_even_split(
    nodes: Sequence[int], free: Mapping[int, int], size: int, share: int, rest: int, group: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the `size` nodes that give `share` CPUs each, and those that give the `rest`, or None."""
    if len(nodes) > EXHAUSTIVE_NODES:
        return _fullest_split(nodes, free, size, share, rest, group)
    best: tuple[float, Sequence[int], Sequence[int]] = (inf, (), ())
    for chosen in combinations(nodes, size):
        if best[0] == 0:
            break
        groups = sum(free[node] // group for node in chosen)
        if groups * group < share * size + rest or any(free[node] < share for node in chosen):
            continue
        left = dict(free)
        for node in chosen:
            left[node] -= share
        balance, extra = _most_even_rest(chosen, left, rest, group)
        if balance < best[0]:
            best = balance, chosen, extra
    return None if best[0] == inf else best[1:]


def _fullest_split(
    nodes: Sequence[int], free: Mapping[int, int], size: int, share: int, rest: int, group: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the same as `_most_even_split` without trying every set of nodes, because there are too many.

    As much being taken, the sum of the squares of what is left is smallest where the fullest nodes give;
    so the answer is as even as any, but for the rounding by which the kubelet compares.
    """
    chosen = sorted(nodes, key=lambda node: -free[node])[:size]
    groups = sum(free[node] // group for node in chosen)
    if groups * group < share * size + rest or free[chosen[-1]] < share:
        return None
    left = {node: free[node] - share for node in chosen}
    extra: list[int] = []
    for _ in range(rest // group):
        fullest = max(chosen, key=left.__getitem__)
        left[fullest] -= group
        extra.append(fullest)
    return chosen, extra


def _most_even_rest(
    chosen: Sequence[int], left: Mapping[int, int], rest: int, group: int
) -> tuple[float, Sequence[int]]:
    """Return which of the chosen nodes give the rest, group by group, as many nodes as possible first."""
    if not rest:
        return _imbalance(left.values()), ()
    able = [node for node in chosen if left[node] >= group]
    best: tuple[float, Sequence[int]] = (inf, ())
    for size in range(len(able), 0, -1):
        for subset in combinations(able, size):
            remaining, missing = dict(left), rest
            while missing:
                before = missing
                for node in subset:
                    if missing and remaining[node] >= group:
                        remaining[node] -= group
                        missing -= group
                if missing == before:
                    break
            if not missing:
                balance = _imbalance(remaining.values())
                if balance < best[0]:
                    best = balance, subset
    return best


def _imbalance(counts: Iterable[int]) -> float:
    """Return the standard deviation; it and the mean are rounded to three digits, as in the kubelet."""
    values = list(counts)
    mean = _rounded(sum(values) / len(values))
    squares = 0.0
    for value in values:  # one after the other: sum() compensates for rounding since Python 3.12
        squares += (value - mean) * (value - mean)
    return _rounded(sqrt(squares / len(values)))


def _rounded(value: float) -> float:
    """Round to three digits, halves away from zero."""
    scaled = value * 1000
    whole = int(scaled)
    return (whole + (scaled - whole >= 0.5)) / 1000
