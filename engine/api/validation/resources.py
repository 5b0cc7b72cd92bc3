"""Requests and limits, of a container or of the pod as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import ResourceRequirements
from engine.api.quantity import NANO, ZERO, Quantity
from engine.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    is_extended,
    is_hugepage,
    scaled,
    supports_pod_level,
)
from engine.api.validation.names import NO_API


def resource_problems(
    resources: ResourceRequirements | None, where: str, *, pod_level: bool
) -> Iterator[str]:
    if resources is None:
        return
    if resources.claims:
        yield f"{where}.claims: {NO_API}"
    requests, limits = resources.requests or {}, resources.limits or {}
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name, quantity in amounts.items():
            yield from _amount(name, quantity, f"{where}.{kind}.{name}", pod_level=pod_level)
    for name, limit in limits.items():
        request = requests.get(name)
        if request is not None and request > limit:
            yield f"{where}.requests.{name}: {request} is more than the limit {limit}"
        if request is not None and request != limit and (is_hugepage(name) or is_extended(name)):
            yield f"{where}.requests.{name}: expected to equal the limit {limit}, got {request}"


def _amount(name: str, quantity: Quantity, field: str, *, pod_level: bool) -> Iterator[str]:
    if quantity < ZERO:
        yield f"{field}: expected 0 or more, got {quantity}"
    elif scaled(name, quantity) >= 2**63:
        yield f"{field}: {quantity} does not fit in 64 bits"
    if pod_level and not supports_pod_level(name):
        yield f"{field}: only cpu, memory and hugepages can be set for a whole pod"
    elif name not in (CPU, MEMORY, EPHEMERAL_STORAGE) and not is_hugepage(name):
        if not is_extended(name):
            yield f"{field}: unknown resource; expected cpu, memory, … or domain/name"
        elif quantity.nano % NANO:
            yield f"{field}: expected a whole number, got {quantity}"
