"""Counts containers and pods whose resources are aligned, under the kubelet's names."""

from __future__ import annotations

from engine.metrics import Registry

NUMA_NODE, PHYSICAL_CPU, UNCORE_CACHE = "numa_node", "physical_cpu", "uncore_cache"
CONTAINER, POD = "container", "pod"


class AlignmentMetrics:
    """Two counters by scope (container or pod) and boundary (numa_node, physical_cpu or uncore_cache)."""

    def __init__(self, registry: Registry) -> None:
        self.aligned = registry.counter(
            "kubelet_container_aligned_compute_resources_count",
            "Cumulative number of aligned compute resources allocated to containers by alignment type.",
            ("scope", "boundary"),
        )
        self.failed = registry.counter(
            "kubelet_container_aligned_compute_resources_failure_count",
            "Cumulative number of failures to allocate aligned compute resources to containers by "
            "alignment type.",
            ("scope", "boundary"),
        )
