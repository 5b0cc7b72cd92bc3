"""Sums of requests and limits over a pod, in the two ways that Kubernetes does them.

`pod_requests` is what admission and cgroups use: sidecars count in full beside the containers that start
after them, amounts of `spec.resources` replace the containers', overhead always counts. `ranking_list` is
what preemption and eviction ranking use. All sums are exact; `scaled` rounds up once, at the end: cpu to
milli-CPU, the rest to base units.

Source: v1.36 `component-helpers/resource` and `pkg/api/v1/resource`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engine.api.pod import Container, Pod, ResourceList
from engine.api.quantity import ZERO, Quantity

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
HUGEPAGES_PREFIX = "hugepages-"
DEFAULT_DOMAIN = "kubernetes.io/"
REQUESTS_PREFIX = "requests."


def scaled(resource: str, quantity: Quantity) -> int:
    """Return the integer that the kubelet computes with: milli-CPU for cpu, base units otherwise."""
    return quantity.milli if resource == CPU else quantity.value


def is_hugepage(resource: str) -> bool:
    return resource.startswith(HUGEPAGES_PREFIX)


def is_native(resource: str) -> bool:
    """Return whether the name has no domain, or that of kubernetes.io."""
    return "/" not in resource or DEFAULT_DOMAIN in resource


def is_extended(resource: str) -> bool:
    """Return whether the name can be a device plugin's resource (`example.com/gpu`)."""
    return (
        not is_native(resource)
        and not resource.startswith(REQUESTS_PREFIX)
        and is_qualified_name(REQUESTS_PREFIX + resource)
    )


_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def is_qualified_name(name: str) -> bool:
    """Return whether the text is a qualified name: an optional DNS prefix and up to 63 characters."""
    prefix, slash, rest = name.rpartition("/")
    if slash and (len(prefix) > 253 or _PREFIX.fullmatch(prefix) is None):
        return False
    return len(rest) <= 63 and _NAME.fullmatch(rest) is not None


def supports_pod_level(resource: str) -> bool:
    """Return whether `spec.resources` may set the resource for the pod as a whole."""
    return resource in (CPU, MEMORY) or is_hugepage(resource)


def has_pod_level_resources(pod: Pod) -> bool:
    """Return whether `spec.resources` requests or limits anything that it may set."""
    resources = pod.spec.resources
    named = {**(resources.requests or {}), **(resources.limits or {})} if resources is not None else {}
    return any(map(supports_pod_level, named))


def has_equal_amounts(container: Container) -> bool:
    """Tell whether a container's requests equal its limits for CPU and memory, both of them above 0."""
    requests, limits = container.requests, container.limits
    return all(requests.get(one, ZERO) == limits.get(one, ZERO) != ZERO for one in (CPU, MEMORY))


def _pod_level_requests(pod: Pod) -> ResourceList:
    requests = (pod.spec.resources.requests or {}) if pod.spec.resources is not None else {}
    return {name: quantity for name, quantity in requests.items() if supports_pod_level(name)}


def aggregate_requests(pod: Pod) -> ResourceList:
    """Return the sum of the containers' requests, whatever `spec.resources` sets."""
    if len(pod.spec.containers) == 1 and not pod.spec.init_containers:
        return dict(pod.spec.containers[0].requests)  # most pods, and several times for each
    return _aggregate([c.requests for c in pod.spec.containers], _init_requests(pod))


def aggregate_limits(pod: Pod) -> ResourceList:
    """Return the sum of the containers' limits, whatever `spec.resources` sets."""
    if len(pod.spec.containers) == 1 and not pod.spec.init_containers:
        return dict(pod.spec.containers[0].limits)
    return _aggregate(
        [c.limits for c in pod.spec.containers],
        [(c.is_sidecar, c.limits) for c in pod.init_containers],
    )


def pod_requests(pod: Pod) -> ResourceList:
    """Return the requests as admission counts them, overhead included."""
    total = aggregate_requests(pod)
    if pod.spec.resources is not None:
        total |= _pod_level_requests(pod)
    if pod.spec.overhead:
        _add(total, pod.spec.overhead)
    return total


def pod_limits(pod: Pod, *, overhead: bool = True) -> ResourceList:
    """Return the limits per resource; overhead is added to those that are set and not zero."""
    total = aggregate_limits(pod)
    if pod.spec.resources is not None:
        for name, quantity in (pod.spec.resources.limits or {}).items():
            if supports_pod_level(name):
                total[name] = quantity
    if overhead:
        for name, quantity in (pod.spec.overhead or {}).items():
            if total.get(name, ZERO):
                total[name] += quantity
    return total


def ranking_list(pod: Pod) -> ResourceList:
    """Return the requests that preemption and eviction ranking count.

    Overhead counts only with a requested amount. Where `spec.resources` sets an amount, the requests of
    containers do not count.
    """
    total = _pod_level_requests(pod) if has_pod_level_resources(pod) else aggregate_requests(pod)
    for name, quantity in (pod.spec.overhead or {}).items():
        if total.get(name, ZERO):
            total[name] += quantity
    return total


def ranking_request(pod: Pod, resource: str) -> Quantity:
    """Return one resource's request as preemption and eviction ranking count it."""
    return Quantity.from_value(1) if resource == PODS else ranking_list(pod).get(resource, ZERO)


def scaled_list(resources: Mapping[str, Quantity]) -> dict[str, int]:
    return {name: scaled(name, quantity) for name, quantity in resources.items()}


def _init_requests(pod: Pod) -> list[tuple[bool, ResourceList]]:
    return [(c.is_sidecar, c.requests) for c in pod.init_containers]


def _aggregate(
    containers: Sequence[ResourceList], inits: Sequence[tuple[bool, ResourceList]]
) -> ResourceList:
    """Return the sum of containers and sidecars, or the peak of the init phase if that is larger."""
    total: ResourceList = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: ResourceList = {}
    peak: ResourceList = {}
    for is_sidecar, amounts in inits:
        if is_sidecar:
            _add(total, amounts)
            _add(sidecars, amounts)
            moment = sidecars
        else:
            moment = dict(amounts)
            _add(moment, sidecars)
        _raise_to(peak, moment)
    _raise_to(total, peak)
    return total


def _add(total: ResourceList, amounts: Mapping[str, Quantity]) -> None:
    for name, quantity in amounts.items():
        total[name] = total[name] + quantity if name in total else quantity


def _raise_to(total: ResourceList, amounts: Mapping[str, Quantity]) -> None:
    for name, quantity in amounts.items():
        if name not in total or total[name] < quantity:
            total[name] = quantity
