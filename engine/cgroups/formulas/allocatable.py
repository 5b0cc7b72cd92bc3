"""Computes node allocatable, and the values of the cgroups that enforce it.

Source: kubelet v1.32 `cm` package (node container manager); pinned by `tests/conformance`
(node_allocatable).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api.amounts.eviction_amounts import Amount
from engine.api.errors import InvalidInput
from engine.api.pod import ResourceList
from engine.api.quantity import BINARY_SI, ZERO, Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY
from engine.cgroups.formulas.conversion import huge_page_limits, milli_cpu_to_shares
from engine.cgroups.formulas.values import GroupValues

PID = "pid"
_EVICTION_RESOURCES = {"memory.available": MEMORY, "nodefs.available": EPHEMERAL_STORAGE}


class HardThreshold(msgspec.Struct, frozen=True):
    """Hold one hard eviction threshold."""

    signal: str
    value: Amount
    operator: str = "LessThan"

    @classmethod
    def parse(cls, signal: str, text: str, operator: str = "LessThan") -> HardThreshold:
        """Parse `100Mi` or `10%`. Raises `InvalidInput`."""
        return cls(signal, Amount.parse(text, f"evictionHard.{signal}"), operator)

    def amount(self, capacity: Quantity) -> Quantity:
        return self.value.quantity or Quantity.from_value(self.value.of(capacity.value), "BinarySI")


class NodeAllocatable(msgspec.Struct, frozen=True):
    """Hold a node's capacity (with `pid`) and its reservations; None if not given at all."""

    capacity: ResourceList
    kube_reserved: ResourceList | None = None
    system_reserved: ResourceList | None = None
    hard_eviction: tuple[HardThreshold, ...] = ()

    def reservation(self) -> ResourceList:
        """Return both reservations plus the hard eviction thresholds, for each resource of the node."""
        eviction = self._eviction()
        reserved: ResourceList = {}
        for name in self.capacity:
            total = ZERO
            for part in (self.system_reserved, self.kube_reserved, eviction):
                total += (part or {}).get(name, ZERO)
            if total:
                reserved[name] = total
        return reserved

    def absolute(self) -> ResourceList:
        """Return capacity minus both reservations, at least 0: the limit of all pods together, without the
        eviction thresholds.
        """
        left: ResourceList = {}
        for name, amount in self.capacity.items():
            for part in (self.system_reserved, self.kube_reserved):
                amount -= (part or {}).get(name, ZERO)
            left[name] = Quantity(max(amount.nano, 0), amount.format)
        return left

    def allocatable(self) -> ResourceList:
        """Return what the scheduler may assign: capacity minus the whole reservation, at least 0."""
        reserved = self.reservation()
        return {
            name: Quantity(max((amount - reserved.get(name, ZERO)).nano, 0), amount.format)
            for name, amount in self.capacity.items()
        }

    def over_reserved(self) -> list[str]:
        """Return the resources of which more is reserved than the node has."""
        reserved = self.reservation()
        return sorted(name for name, amount in reserved.items() if amount > self.capacity.get(name, ZERO))

    def kubepods_values(self, *, enforced: bool) -> GroupValues:
        """Return the values of the root pod cgroup: allocatable if `pods` is enforced, otherwise the whole
        node.
        """
        return _required(reserved_values(self.absolute() if enforced else self.capacity))

    def _eviction(self) -> ResourceList:
        amounts: ResourceList = {}
        for threshold in self.hard_eviction:
            name = _EVICTION_RESOURCES.get(threshold.signal)
            if name is not None and threshold.operator == "LessThan":
                amounts[name] = threshold.amount(self.capacity.get(name, ZERO))
        return amounts


def without_huge_pages(allocatable: Mapping[str, Quantity], capacity: Mapping[str, Quantity]) -> ResourceList:
    """Subtract preallocated huge pages from the memory."""
    huge = sum(amount.value for name, amount in capacity.items() if name.startswith(HUGEPAGES_PREFIX))
    if not huge or MEMORY not in allocatable:
        return dict(allocatable)
    left = max(allocatable[MEMORY].value - huge, 0)
    return {**allocatable, MEMORY: Quantity.from_value(left, BINARY_SI)}


def reserved_values(
    resources: Mapping[str, Quantity] | None, *, compressible_only: bool = False
) -> GroupValues | None:
    """Return a cgroup's values for a resource list, or None without a list.

    With `compressible_only`, memory, pids and huge pages are left alone, because they cannot be reclaimed.
    """
    if resources is None:
        return None
    cpu = resources.get(CPU)
    shares = None if cpu is None else milli_cpu_to_shares(cpu.milli)
    if compressible_only:
        return GroupValues(cpu_shares=shares)
    memory, pids = resources.get(MEMORY), resources.get(PID)
    return GroupValues(
        cpu_shares=shares,
        memory=None if memory is None else memory.value,
        pids=None if pids is None else pids.value,
        huge_pages=huge_page_limits(resources),
    )


def _required(values: GroupValues | None) -> GroupValues:
    assert values is not None
    return values


def parse_resources(amounts: Mapping[str, str] | None, field: str) -> ResourceList | None:
    """Parse a reservation of the configuration. Raises `InvalidInput` naming the field."""
    if amounts is None:
        return None
    parsed: ResourceList = {}
    for name, text in amounts.items():
        try:
            parsed[name] = Quantity.parse(text)
        except InvalidInput as error:
            raise InvalidInput(error.message, subject=f"{field}.{name}") from None
        if parsed[name] < ZERO:
            raise InvalidInput(f"{text!r} is negative", subject=f"{field}.{name}")
    return parsed
