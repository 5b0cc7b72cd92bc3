"""Computes capacity and allocatable: the machine's resources, minus reservations, plus devices."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.quantity import BINARY_SI, Quantity
from engine.api.resources import HUGEPAGES_PREFIX, MEMORY
from engine.cgroups.node_cgroups import NodeCgroups
from engine.devices.manager import DeviceManager


class NodeResources:
    """Capacity and allocatable, computed on each call."""

    def __init__(
        self,
        machine: Mapping[str, Quantity],
        cgroups: NodeCgroups,
        devices: DeviceManager,
    ) -> None:
        self._machine = dict(machine)
        self._allocatable = without_huge_pages(cgroups.allocatable(), machine)
        self._devices = devices

    def capacity(self) -> dict[str, Quantity]:
        capacity, _, _ = self._devices.capacity()
        return {**self._machine, **_quantities(capacity)}

    def allocatable(self) -> dict[str, Quantity]:
        _, allocatable, _ = self._devices.capacity()
        return {**self._allocatable, **_quantities(allocatable)} if allocatable else dict(self._allocatable)


def without_huge_pages(
    allocatable: Mapping[str, Quantity], capacity: Mapping[str, Quantity]
) -> dict[str, Quantity]:
    """Subtract preallocated huge pages from the memory."""
    huge = sum(amount.value for name, amount in capacity.items() if name.startswith(HUGEPAGES_PREFIX))
    if not huge or MEMORY not in allocatable:
        return dict(allocatable)
    left = max(allocatable[MEMORY].value - huge, 0)
    return {**allocatable, MEMORY: Quantity.from_value(left, BINARY_SI)}


def _quantities(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    return {name: Quantity.from_value(amount) for name, amount in amounts.items()}
