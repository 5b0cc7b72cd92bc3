"""Measures the CPU manager, under the kubelet's metric names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.metrics import Registry
from engine.topologymanager.alignment_metrics import (
    CONTAINER,
    PHYSICAL_CPU,
    UNCORE_CACHE,
    AlignmentMetrics,
)


class CpuMetrics:
    """Count allocations, and expose the current assignments of `policy`."""

    def __init__(self, registry: Registry, policy: StaticCpuPolicy) -> None:
        self.policy = policy
        self.requests = registry.counter(
            "kubelet_cpu_manager_pinning_requests_total",
            "The number of cpu core allocations which required pinning.",
        )
        self._errors = registry.counter(
            "kubelet_cpu_manager_pinning_errors_total",
            "The number of cpu core allocations which required pinning failed.",
        )
        self._alignment = AlignmentMetrics(registry)
        self._allocations = registry.counter(
            "kubelet_resource_manager_allocations_total",
            "Number of exclusive resource allocations performed by a resource manager.",
            ("resource_name", "source"),
        )
        self._allocation_errors = registry.counter(
            "kubelet_resource_manager_allocation_errors_total",
            "Number of errors encountered during exclusive resource allocation.",
            ("resource_name", "source"),
        )
        self._assignments = registry.counter(
            "kubelet_resource_manager_container_assignments",
            "Number of containers with a specific type of resource assignment.",
            ("resource_name", "assignment_type"),
        )
        for boundary in (PHYSICAL_CPU, UNCORE_CACHE):
            self._alignment.aligned.inc(CONTAINER, boundary, by=0)
        self._alignment.failed.inc(CONTAINER, PHYSICAL_CPU, by=0)
        self._expose_assignments(registry)

    def _expose_assignments(self, registry: Registry) -> None:
        registry.collected(
            "gauge",
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            (),
            lambda: [((), self.policy.available.bit_count() * 1000.0)],
        )
        registry.collected(
            "gauge",
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "The total number of CPUs exclusively allocated to containers running on this node",
            (),
            lambda: [((), float(self.policy.state.exclusive.bit_count()))],
        )
        registry.collected(
            "gauge",
            "kubelet_cpu_manager_allocation_per_numa",
            "Number of CPUs allocated per NUMA node",
            ("numa_node",),
            self._per_node,
        )

    def count_allocation(self, cpus: int, *, whole_cores: bool, new: bool) -> None:
        """Count an allocation of CPUs; `new` unless the container had them before."""
        if whole_cores:
            self._alignment.aligned.inc(CONTAINER, PHYSICAL_CPU)
        if not new:
            return
        if self.policy.topology.in_one_cache(cpus):
            self._alignment.aligned.inc(CONTAINER, UNCORE_CACHE)
        self._allocations.inc("cpu", "node")
        self._assignments.inc("cpu", "node_exclusive")

    def count_failure(self, *, whole_cores: bool) -> None:
        """Count a failed allocation."""
        self._errors.inc()
        self._allocation_errors.inc("cpu", "node")
        if whole_cores:
            self._alignment.failed.inc(CONTAINER, PHYSICAL_CPU)

    def count_pod_allocation(self, exclusive: Sequence[bool], *, one_cache: bool) -> None:
        """Count an allocation to a pod as a whole; `exclusive` tells which of its containers share no CPU."""
        if one_cache:
            self._alignment.aligned.inc(CONTAINER, UNCORE_CACHE)
        for own in exclusive:
            self._allocations.inc("cpu", "pod")
            self._assignments.inc("cpu", "pod_exclusive" if own else "pod_shared")
        self.requests.inc(by=sum(exclusive))

    def count_pod_failure(self) -> None:
        """Count a failed allocation to a pod as a whole."""
        self._errors.inc()
        self._allocation_errors.inc("cpu", "pod")

    def _per_node(self) -> Iterable[tuple[tuple[str, ...], float]]:
        exclusive = self.policy.state.exclusive
        for node, members in self.policy.topology.layout.nodes.items():
            yield (str(node),), float((exclusive & members).bit_count())
