"""Words the message of an evicted pod as the kubelet does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.api.pod import Pod
from engine.api.quantity import BINARY_SI, ZERO, Quantity
from engine.eviction.signals import EPHEMERAL_STORAGE, MEMORY, MEMORY_STALL, RESOURCE_OF, Observations
from engine.eviction.thresholds import Threshold, format_bytes
from engine.eviction.usage import ContainerUsage, PodUsage

REASON: Final = "Evicted"
CONDITION_REASON: Final = "TerminationByKubelet"
OFFENDING_CONTAINERS: Final = "offending_containers"
OFFENDING_CONTAINERS_USAGE: Final = "offending_containers_usage"
OFFENDING_POD: Final = "offending_pod"
OFFENDING_POD_USAGE: Final = "offending_pod_usage"
STARVED_RESOURCE: Final = "starved_resource"


def eviction_message(
    resource: str,
    pod: Pod,
    usage: PodUsage | None,
    thresholds: Sequence[Threshold],
    observations: Observations,
) -> tuple[str, dict[str, str]]:
    """Return the message and the annotations of the event; no annotations without stats of the pod.

    A pod with a memory request of its own is named with its usage, above that request or not.
    """
    message = f"The node was low on resource: {resource}. "
    for threshold in thresholds:
        observed = observations.get(threshold.signal)
        if threshold.signal == MEMORY_STALL and observed is not None:
            waited = (observed.capacity - observed.available) / 100
            message += f"All pods waited for memory {waited:g}% of the time. "
            break
        if RESOURCE_OF[threshold.signal] == resource and observed is not None:
            quantity = threshold.value.quantity or format_bytes(threshold.limit(observed.capacity))
            message += f"Threshold quantity: {quantity}, available: {format_available(observed.available)}. "
            break
    if usage is None:
        return message, {}
    annotations = {}
    of_pod = (pod.spec.resources.requests or {}).get(MEMORY) if pod.spec.resources is not None else None
    if resource == MEMORY and of_pod is not None and usage.memory is not None:
        used = format_bytes(usage.memory)
        message += (
            f"Pod {pod.metadata.name} was using {used}, request is {of_pod}, "
            f"has larger consumption of {resource}. "
        )
        annotations = {OFFENDING_POD: pod.metadata.name, OFFENDING_POD_USAGE: str(used)}
    names, amounts = [], []
    for container in [*pod.spec.containers, *pod.init_containers]:
        measured = usage.containers.get(container.name)
        amount = _amount(resource, measured) if measured is not None else None
        request = container.requests.get(resource, ZERO)
        if amount is not None and amount > request:
            message += (
                f"Container {container.name} was using {amount}, request is {request}, "
                f"has larger consumption of {resource}. "
            )
            names.append(container.name)
            amounts.append(str(amount))
    return message, {
        **annotations,
        OFFENDING_CONTAINERS: ",".join(names),
        OFFENDING_CONTAINERS_USAGE: ",".join(amounts),
        STARVED_RESOURCE: resource,
    }


def format_available(amount: int) -> Quantity:
    """Format an amount in binary units: whole Ki if possible, otherwise bytes."""
    return Quantity.from_value(amount, BINARY_SI)


def _amount(resource: str, usage: ContainerUsage) -> Quantity | None:
    if resource == MEMORY and usage.memory is not None:
        return format_bytes(usage.memory)
    if resource == EPHEMERAL_STORAGE:
        return format_bytes(usage.rootfs.bytes + usage.logs.bytes)
    return None
