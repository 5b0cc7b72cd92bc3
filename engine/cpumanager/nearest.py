"""Chooses CPUs near those that a container already has. Pure."""

from __future__ import annotations

from engine.cpumanager.static_policy import StaticCpuPolicy, take_by_topology
from engine.topologymanager.policy import Hint


def nearest_cpus(policy: StaticCpuPolicy, held: int, free: int, count: int, hint: Hint) -> int:
    """Return `count` of the free CPUs, those on the hint's NUMA nodes and close to the held ones first.

    Siblings of the held ones come first, then whole cores, then single CPUs.
    """
    topology = policy.topology
    aligned = topology.cpus if hint.mask is None else policy.of_mask(hint.mask)
    regions = [topology.of_caches_of(held), topology.of_nodes_of(held), topology.cpus]
    whole = topology.whole_cores(free)
    threads = topology.threads_per_core
    candidates = [(within & region, 1) for within in (aligned, topology.cpus) for region in regions]
    if not policy.options.across_cores:
        cores = [(within & whole, threads) for within, _ in candidates]
        candidates = [(topology.with_siblings(held) & aligned, 1), *cores, *candidates]
    taken = 0
    for cpus, unit in candidates:
        left = free & cpus & ~taken
        missing = min(count - taken.bit_count(), left.bit_count())
        if missing:
            taken |= take_by_topology(topology, policy.options, left, missing // unit * unit)
    return taken
