"""What the node has and what it can give: the machine's, less what is kept back, plus its devices."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.quantity import Quantity
from engine.cgroups.node_cgroups import NodeCgroups
from engine.devices.manager import DeviceManager


class NodeResources:
    """Capacity and allocatable, current whenever they are asked for."""

    def __init__(
        self,
        machine: Mapping[str, Quantity],
        cgroups: NodeCgroups,
        devices: DeviceManager,
    ) -> None:
        self._machine = dict(machine)
        self._allocatable = cgroups.allocatable()
        self._devices = devices

    def capacity(self) -> dict[str, Quantity]:
        capacity, _, _ = self._devices.capacity()
        return {**self._machine, **_quantities(capacity)}

    def allocatable(self) -> dict[str, Quantity]:
        _, allocatable, _ = self._devices.capacity()
        return {**self._allocatable, **_quantities(allocatable)}


def _quantities(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    return {name: Quantity.from_value(amount) for name, amount in amounts.items()}
