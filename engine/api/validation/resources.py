"""Requests and limits: of containers, of the pod as a whole, of its overhead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.api.pod import Pod, ResourceRequirements
from engine.api.quantity import NANO, ZERO, Quantity, QuantityError
from engine.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES_PREFIX,
    MEMORY,
    aggregate_limits,
    aggregate_requests,
    is_extended,
    is_hugepage,
    is_native,
    is_qualified_name,
    scaled,
    supports_pod_level,
)
from engine.api.validation.names import NO_API

_STANDARD = (CPU, MEMORY, EPHEMERAL_STORAGE)


def container_resources(resources: ResourceRequirements | None, where: str) -> Iterator[str]:
    if resources is None:
        return
    if resources.claims:
        yield f"{where}.claims: {NO_API}"
    yield from _requirements(resources, where, pod_level=False)


def overhead_problems(pod: Pod) -> Iterator[str]:
    """Check a pod's overhead by the rules of a container's limits."""
    if pod.spec.overhead is not None:
        limits = ResourceRequirements(limits=pod.spec.overhead)
        for problem in _requirements(limits, "spec.overhead", pod_level=False):
            yield problem.replace("spec.overhead.limits.", "spec.overhead.", 1)


def pod_resources(pod: Pod) -> Iterator[str]:
    """Check `spec.resources` alone, and against the containers' resources (KEP-2837)."""
    resources, where = pod.spec.resources, "spec.resources"
    if resources is None:
        return
    if pod.spec.os is not None and pod.spec.os.name == "windows":
        yield f"{where}: must not be set for a Windows pod"
        return
    if resources.claims is not None:
        yield f"{where}.claims: may be set only for containers"
    yield from _requirements(resources, where, pod_level=True)
    requests, limits = resources.requests or {}, resources.limits or {}
    for name, sum in aggregate_requests(pod).items():
        if name in requests and sum > requests[name]:
            yield f"{where}.requests.{name}: {requests[name]} is less than the containers' {sum} together"
    # Limits of cpu and memory may exceed the pod's together: the pod's cgroup bounds them all. Huge pages
    # cannot be overcommitted, so that theirs must fit.
    for name, sum in aggregate_limits(pod).items():
        if is_hugepage(name) and name in limits and sum > limits[name]:
            yield f"{where}.limits.{name}: {limits[name]} is less than the containers' {sum} together"
    for index, container in enumerate(pod.spec.containers):
        for name, limit in container.limits.items():
            if name in limits and limit > limits[name]:
                field = f"spec.containers[{index}].resources.limits.{name}"
                yield f"{field}: {limit} is more than the pod's limit {limits[name]}"


def _requirements(resources: ResourceRequirements, where: str, *, pod_level: bool) -> Iterator[str]:
    requests, limits = resources.requests or {}, resources.limits or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, quantity in amounts.items():
            field = f"{where}.{kind}.{name[:64]}"
            yield from _name(name, field, pod_level=pod_level)
            yield from _amount(name, quantity, field)
    yield from _requests_within(requests, limits, where)
    named = {*requests, *limits}
    # Otherwise the pod would be BestEffort by its requests, with memory that is never reclaimed.
    if any(map(is_hugepage, named)) and not named & {CPU, MEMORY}:
        yield f"{where}: huge pages require an amount of cpu or memory as well"


def _requests_within(
    requests: Mapping[str, Quantity], limits: Mapping[str, Quantity], where: str
) -> Iterator[str]:
    for name, request in requests.items():
        field, limit = f"{where}.requests.{name[:64]}", limits.get(name)
        # What cannot be overcommitted has one amount: the kernel and device plugins know no request.
        if not is_native(name) or is_hugepage(name):
            if limit is None:
                yield f"{field}: expected a limit equal to the request"
            elif request != limit:
                yield f"{field}: expected to equal the limit {limit}, got {request}"
        elif limit is not None and request > limit:
            yield f"{field}: {request} is more than the limit {limit}"


def _name(name: str, field: str, *, pod_level: bool) -> Iterator[str]:
    if not is_qualified_name(name):
        yield f"{field}: not a resource's name"
    elif pod_level and not supports_pod_level(name):
        yield f"{field}: only cpu, memory and hugepages can be set for a whole pod"
    elif "/" in name and not is_native(name) and not is_extended(name):
        yield f"{field}: not the name of an extended resource"
    elif "/" not in name and name not in _STANDARD and not is_hugepage(name):
        yield f"{field}: unknown resource; expected cpu, memory, … or domain/name"


def _amount(name: str, quantity: Quantity, field: str) -> Iterator[str]:
    if quantity < ZERO:
        yield f"{field}: expected 0 or more, got {quantity}"
    elif scaled(name, quantity) >= 2**63:
        yield f"{field}: {quantity} does not fit in 64 bits"
    elif is_hugepage(name):
        if not _are_whole_pages(name, quantity):
            yield f"{field}: expected a multiple of the page size, got {quantity}"
    elif is_extended(name) and quantity.nano % NANO:
        yield f"{field}: expected a whole number, got {quantity}"


def _are_whole_pages(name: str, quantity: Quantity) -> bool:
    try:
        size = Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX))
    except QuantityError:
        return False
    return size > ZERO and size.nano % NANO == 0 and quantity.value % size.value == 0
