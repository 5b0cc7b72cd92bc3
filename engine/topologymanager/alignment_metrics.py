"""Counts admissions, and containers and pods whose resources are aligned, under the kubelet's names."""

from __future__ import annotations

import msgspec

from engine.metrics import Registry

NUMA_NODE, PHYSICAL_CPU, UNCORE_CACHE = "numa_node", "physical_cpu", "uncore_cache"
CONTAINER, POD = "container", "pod"
ADMISSION_BUCKETS = tuple(0.05 * 2**i for i in range(15))
"""Upper bounds in milliseconds."""


class AlignmentTally(msgspec.Struct):
    """Hold how often one try to admit a pod was aligned to a NUMA node, and how often it could not be."""

    aligned: int = 0
    failed: int = 0


class AlignmentMetrics:
    """Count by scope (container or pod) and boundary (numa_node, physical_cpu or uncore_cache)."""

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


class TopologyAdmissionMetrics:
    """Count the admissions that the topology manager decides, those that failed, and how long they took."""

    def __init__(self, registry: Registry) -> None:
        self.requests = registry.counter(
            "kubelet_topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.",
        )
        self.errors = registry.counter(
            "kubelet_topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.",
        )
        self.milliseconds = registry.histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "Duration in milliseconds to serve a pod admission request.",
            buckets=ADMISSION_BUCKETS,
        )
