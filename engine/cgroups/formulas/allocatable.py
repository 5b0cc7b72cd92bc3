"""Node allocatable: what is left for pods, and the values of the groups that enforce it.

Source: kubelet v1.32 `cm` package (node container manager); pinned by `tests/conformance`
(node_allocatable).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.api.amounts.eviction_amounts import Amount
from engine.api.errors import InvalidInput
from engine.api.pod import ResourceList
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY
from engine.cgroups.formulas.conversion import huge_page_limits, milli_cpu_to_shares
from engine.cgroups.formulas.values import GroupValues

PID = "pid"
_EVICTION_RESOURCES = {"memory.available": MEMORY, "nodefs.available": EPHEMERAL_STORAGE}


@dataclass(frozen=True, slots=True)
class HardThreshold:
    """One hard eviction threshold."""

    signal: str
    value: Amount
    operator: str = "LessThan"

    @classmethod
    def parse(cls, signal: str, text: str, operator: str = "LessThan") -> HardThreshold:
        """From the configuration's text, `100Mi` or `10%`. Raises `InvalidInput`."""
        return cls(signal, Amount.parse(text, f"evictionHard.{signal}"), operator)

    def amount(self, capacity: Quantity) -> Quantity:
        return self.value.quantity or Quantity.from_value(self.value.of(capacity.value), "BinarySI")


@dataclass(frozen=True, slots=True)
class NodeAllocatable:
    """A node's capacity (with `pid`) and what is kept back of it. None: not given at all."""

    capacity: ResourceList
    kube_reserved: ResourceList | None = None
    system_reserved: ResourceList | None = None
    hard_eviction: tuple[HardThreshold, ...] = ()

    def reservation(self) -> ResourceList:
        """Both reservations and the hard eviction thresholds, per resource that the node has."""
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
        """Capacity less both reservations, never below 0: what pods as a whole may use before
        eviction starts to matter."""
        left: ResourceList = {}
        for name, amount in self.capacity.items():
            for part in (self.system_reserved, self.kube_reserved):
                amount -= (part or {}).get(name, ZERO)
            left[name] = Quantity(max(amount.nano, 0), amount.format)
        return left

    def allocatable(self) -> ResourceList:
        """What the scheduler may hand out: capacity less the whole reservation, never below 0."""
        reserved = self.reservation()
        return {
            name: Quantity(max((amount - reserved.get(name, ZERO)).nano, 0), amount.format)
            for name, amount in self.capacity.items()
        }

    def over_reserved(self) -> list[str]:
        """Resources of which more is kept back than the node has."""
        reserved = self.reservation()
        return sorted(name for name, amount in reserved.items() if amount > self.capacity.get(name, ZERO))

    def kubepods_values(self, *, enforced: bool) -> GroupValues:
        """The root pod cgroup: allocatable if `pods` is enforced, the whole node if not."""
        return _required(reserved_values(self.absolute() if enforced else self.capacity))

    def _eviction(self) -> ResourceList:
        amounts: ResourceList = {}
        for threshold in self.hard_eviction:
            name = _EVICTION_RESOURCES.get(threshold.signal)
            if name is not None and threshold.operator == "LessThan":
                amounts[name] = threshold.amount(self.capacity.get(name, ZERO))
        return amounts


def reserved_values(
    resources: Mapping[str, Quantity] | None, *, compressible_only: bool = False
) -> GroupValues | None:
    """A group's values for a list of resources; None for no list. With `compressible_only` memory,
    pids and huge pages, which cannot be taken back, are left alone."""
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
    """A reservation from the configuration. Raises `InvalidInput` naming the field."""
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
