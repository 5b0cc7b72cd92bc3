"""Computes the QoS class, and which pods are critical, static or mirror.

Source: kubelet v1.36 `qos` and `types` packages; KEP-2837 for pod-level resources.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.api.pod import Pod, ResourceList
from engine.api.quantity import ZERO
from engine.api.resources import CPU, MEMORY

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"

SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
NODE_CRITICAL_PRIORITY = 2_000_001_000
SYSTEM_NODE_CRITICAL = "system-node-critical"

SOURCE_ANNOTATION = "kubernetes.io/config.source"
SOURCE_FILE = "file"
SOURCE_HTTP = "http"
SOURCE_API = "api"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
HASH_ANNOTATION = "kubernetes.io/config.hash"
SEEN_ANNOTATION = "kubernetes.io/config.seen"

_COMPUTE = (CPU, MEMORY)


def qos_class(pod: Pod) -> str:
    """Return the class recorded in the status, or else that of the spec."""
    return pod.status.qos_class or compute_qos_class(pod)


def compute_qos_class(pod: Pod) -> str:
    """Compute the class: BestEffort without any CPU or memory amount; Guaranteed if every container limits
    both and the summed requests equal the summed limits; otherwise Burstable.

    Zero amounts do not count.
    """
    # Pod-level resources replace those of the containers in the decision; they are not added (KEP-2837).
    if pod.spec.resources is not None:
        requested = _compute_amounts([pod.spec.resources.requests or {}])
        limited = _compute_amounts([pod.spec.resources.limits or {}])
        every_limited = len(limited) == len(_COMPUTE)
    else:
        containers = pod.all_containers
        limits = [container.limits for container in containers]
        requested = _compute_amounts([container.requests for container in containers])
        limited = _compute_amounts(limits)
        every_limited = all(map(_has_both, limits))
    if not requested and not limited:
        return BEST_EFFORT
    if every_limited and requested == limited:
        return GUARANTEED
    return BURSTABLE


def _has_both(amounts: ResourceList) -> bool:
    return amounts.get(CPU, ZERO).nano > 0 and amounts.get(MEMORY, ZERO).nano > 0


def _compute_amounts(amounts: Iterable[ResourceList]) -> dict[str, int]:
    """Sum the positive amounts of CPU and memory in nano-units, as `Quantity.nano` has them."""
    total: dict[str, int] = {}
    for resources in amounts:
        for name in _COMPUTE:
            # Plain integers, because the planner computes the class of each pod on each node.
            nano = resources.get(name, ZERO).nano
            if nano > 0:
                total[name] = total.get(name, 0) + nano
    return total


def is_static(pod: Pod) -> bool:
    """Tell whether the pod is static: from any source but the API server, including an empty
    source annotation.
    """
    return pod.annotations.get(SOURCE_ANNOTATION, "api") != "api"


def is_mirror(pod: Pod) -> bool:
    return MIRROR_ANNOTATION in pod.annotations


def is_critical(pod: Pod) -> bool:
    """Tell whether the pod is critical: static, mirror, or of system-critical priority."""
    return is_static(pod) or is_mirror(pod) or (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY


def is_node_critical(pod: Pod) -> bool:
    return is_critical(pod) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL
