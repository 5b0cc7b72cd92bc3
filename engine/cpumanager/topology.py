"""Reads the topology of a machine's online CPUs: core, last-level cache, socket and NUMA node.

A core is identified by its lowest CPU, because the kernel numbers cores per socket. Pure; `machine` reads
sysfs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

from engine._fast.pinning import cpu_assignment as kernels
from engine.topologymanager.policy import Numa


class Processor(NamedTuple):
    """Hold one online CPU and the kernel's ids of its groups. `core` is unique within a socket."""

    cpu: int
    core: int
    cache: int
    socket: int
    node: int


class CpuTopology:
    """Hold the online CPUs by core, cache, socket and NUMA node. Raise `ValueError` without any CPU."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        if not processors:
            raise ValueError("could not detect number of cpus")
        self.processors = tuple(sorted(processors))
        caches: dict[int, int] = {}
        sockets: dict[int, int] = {}
        nodes: dict[int, int] = {}
        by_core: dict[tuple[int, int, int], int] = {}
        for one in self.processors:
            bit = 1 << one.cpu
            for level, key in ((caches, one.cache), (sockets, one.socket), (nodes, one.node)):
                level[key] = level.get(key, 0) | bit
            place = (one.node, one.socket, one.core)
            by_core[place] = by_core.get(place, 0) | bit
        cores = {(cpus & -cpus).bit_length() - 1: cpus for cpus in by_core.values()}
        self.layout = kernels.Layout(cores, caches, sockets, nodes)

    @property
    def cpus(self) -> int:
        """Return all online CPUs."""
        return self.layout.cpus

    @property
    def threads_per_core(self) -> int:
        """Return the average number of CPUs per core, rounded down, which the kubelet uses as the size of a
        core.
        """
        return self.layout.per_core

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Return the ids of the NUMA nodes that have CPUs, ascending."""
        return tuple(sorted(self.layout.nodes))

    def with_siblings(self, cpus: int) -> int:
        """Return the set and all other CPUs of the same cores."""
        return _touched(self.layout.cores, cpus)

    def whole_cores(self, cpus: int) -> int:
        """Return the CPUs of the set that are in cores which it has completely."""
        return _union(members for members in self.layout.cores.values() if not members & ~cpus)

    def of_caches_of(self, cpus: int) -> int:
        """Return the CPUs of all last-level caches that serve some of the set."""
        return _touched(self.layout.caches, cpus)

    def of_nodes_of(self, cpus: int) -> int:
        """Return the CPUs of all NUMA nodes that have some of the set."""
        return _touched(self.layout.nodes, cpus)

    def of_nodes(self, nodes: Sequence[int]) -> int:
        """Return the CPUs of NUMA nodes."""
        found = 0
        for node in nodes:
            found |= self.layout.nodes.get(node, 0)
        return found

    def of_sockets_of(self, nodes: Sequence[int]) -> int:
        """Return the CPUs of all sockets that have CPUs on the given NUMA nodes."""
        return _touched(self.layout.sockets, self.of_nodes(nodes))

    def per_node(self, cpus: int, numa: Numa) -> tuple[int, ...]:
        """Count the CPUs of the set on each of the machine's NUMA nodes."""
        return tuple((self.layout.nodes.get(node, 0) & cpus).bit_count() for node in numa.nodes)

    def in_one_cache(self, cpus: int) -> bool:
        """Return whether the CPUs share one last-level cache."""
        return any(cpus & ~members == 0 for members in self.layout.caches.values())


def _touched(level: Mapping[int, int], cpus: int) -> int:
    """Return all CPUs of the members of a level that have some of the set."""
    return _union(members for members in level.values() if members & cpus)


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)
