"""Allocate the devices of one claim on one node, by the search of the scheduler v1.36.

Requests are met in order, devices are tried in the order of drivers, pools, slices and devices, and the first
complete set is taken: the search goes back until every request, constraint, counter and capacity is met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engine.admission.selectors import tolerates
from engine.api.errors import InvalidInput
from engine.api.node import Taint
from engine.api.quantity import Quantity
from engine.plan.claims.capacity import ZERO, consumed_amounts, has_capacity
from engine.plan.claims.objects import (
    AllocatedDevice,
    DeviceClass,
    DeviceConstraint,
    DeviceDemand,
    DeviceRequest,
    OfferedDevice,
    PlannedClaimSpec,
)
from engine.plan.claims.pools import DeviceKey, NodeDevices, PoolDevice, consumed_counters
from engine.plan.claims.selectors import Selectors

MOST_DEVICES: Final = 32
"""Devices that one claim can have."""
MOST_STEPS: Final = 100_000
"""Devices that one search tries before it gives up."""
PREVENTING: Final = ("NoSchedule", "NoExecute")


class TooLong(InvalidInput):
    """Raised if a search ends without an answer."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Hold one device for one request of a claim."""

    request: str
    device: PoolDevice
    demand: DeviceDemand

    @property
    def result(self) -> AllocatedDevice:
        """Return what the claim's status holds after the allocation."""
        driver, pool, device = self.device.key
        shared = self.device.is_shared
        return AllocatedDevice(
            request=self.request,
            driver=driver,
            pool=pool,
            device=device,
            admin_access=self.demand.admin_access,
            share_id="planned" if shared else None,
            consumed_capacity=consumed_amounts(self.device.offered, _requested(self.demand))
            if shared
            else None,
        )


@dataclass(frozen=True)
class Demands:
    """Hold the rules by which devices meet a claim: classes by name, and compiled selectors."""

    classes: Mapping[str, DeviceClass]
    selectors: Selectors = field(default_factory=Selectors)

    def check(self, spec: PlannedClaimSpec) -> None:
        """Raise `InvalidInput` for a request without a demand, or of a class that there is not."""
        for request in spec.devices.requests or ():
            if not request.demands:
                raise InvalidInput("neither exactly nor firstAvailable", subject=f"request {request.name}")
            for demand in request.demands:
                if demand.device_class_name not in self.classes:
                    known = ", ".join(sorted(self.classes)) or "none"
                    raise InvalidInput(
                        f"there is no DeviceClass {demand.device_class_name!r} (found: {known})",
                        subject=f"request {request.name}",
                    )

    def matches(self, demand: DeviceDemand, device: PoolDevice) -> bool:
        """Tell whether class and request select a device. Raise `SelectorError`."""
        selectors = [
            *(self.classes[demand.device_class_name].spec.selectors or ()),
            *(demand.selectors or ()),
        ]
        return all(
            self.selectors.matches(each.cel.expression, device.driver, device.offered)
            for each in selectors
            if each.cel is not None
        )


def allocate(spec: PlannedClaimSpec, node: NodeDevices, demands: Demands) -> list[Pick] | None:
    """Return the devices that the scheduler would allocate, or None if the claim does not fit.

    Changes nothing. Raise `SelectorError` for a selector that fails, and `TooLong`.
    """
    return _Search(spec, node, demands).result()


def take(picks: Sequence[Pick], node: NodeDevices) -> NodeDevices:
    """Return the node's devices after an allocation."""
    counters, used = dict(node.counters), set(node.used)
    shared = {key: dict(amounts) for key, amounts in node.shared.items()}
    for pick in picks:
        if pick.demand.admin_access:
            continue
        key, offered = pick.device.key, pick.device.offered
        if key not in used and key not in shared:
            for counter, amount in consumed_counters(key, offered).items():
                counters[counter] = counters.get(counter, ZERO) - amount
        if pick.device.is_shared:
            amounts = shared.setdefault(key, {})
            for name, amount in consumed_amounts(offered, _requested(pick.demand)).items():
                amounts[name] = amounts.get(name, ZERO) + amount
        else:
            used.add(key)
    return replace(node, counters=counters, used=used, shared=shared)


def is_tainted(device: PoolDevice, demand: DeviceDemand) -> bool:
    """Tell whether a taint that the request does not tolerate keeps a device from being allocated."""
    return any(
        taint.effect in PREVENTING
        and not tolerates(
            demand.tolerations or (), Taint(key=taint.key, value=taint.value, effect=taint.effect)
        )
        for taint in device.taints
    )


def attribute_of(device: PoolDevice, name: str) -> tuple[str, Any] | None:
    """Return an attribute by its qualified name; one without a domain belongs to the driver's own."""
    attributes = device.offered.attributes or {}
    domain, _, identifier = name.partition("/")
    found = attributes.get(name)
    if found is None and domain == device.driver:
        found = attributes.get(identifier)
    return found.value if found is not None else None


def _requested(demand: DeviceDemand) -> Mapping[str, Quantity] | None:
    return demand.capacity.requests if demand.capacity is not None else None


class _Contradiction(Exception):
    """Raised within a search if no set of devices can be allocated."""


class _Search:
    """Search once. `_picks` is the present set; every step back restores what the step changed."""

    def __init__(self, spec: PlannedClaimSpec, node: NodeDevices, demands: Demands) -> None:
        self._requests = spec.devices.requests or []
        self._constraints = spec.devices.constraints or []
        self._node, self._demands = node, demands
        self._counters = dict(node.counters)
        self._allocating: dict[DeviceKey, dict[str, Quantity]] = {}
        self._taken: set[DeviceKey] = set()
        self._all: dict[int, list[PoolDevice]] = {}
        self._picks: list[Pick] = []
        self._steps = 0

    def result(self) -> list[Pick] | None:
        # The scheduler selects all devices first, and allocates nothing if one of them may be missing.
        for demand in (each for request in self._requests for each in request.demands):
            if demand.allocation_mode == "All":
                if self._node.unusable:
                    return None
                self._all[id(demand)] = [
                    device
                    for device in self._node.devices
                    if self._demands.matches(demand, device) and self._has_capacity(demand, device)
                ]
        try:
            return list(self._picks) if self._request(0) else None
        except _Contradiction:
            return None

    def _request(self, number: int) -> bool:
        if number == len(self._requests):
            return True
        request = self._requests[number]
        following = number + 1
        return any(
            self._demand(request, demand, lambda: self._request(following)) for demand in request.demands
        )

    def _demand(self, request: DeviceRequest, demand: DeviceDemand, then: Callable[[], bool]) -> bool:
        devices = self._node.devices
        if demand.allocation_mode == "All":
            devices = self._all[id(demand)]
            count, fixed = len(devices), True
        else:
            count, fixed = demand.count, False
        if not count or len(self._picks) + count > MOST_DEVICES:
            return False
        name = request.name if request.exactly is not None else f"{request.name}/{demand.name}"
        return self._devices(name, demand, devices, 0, count, fixed, then)

    def _devices(
        self,
        name: str,
        demand: DeviceDemand,
        devices: Sequence[PoolDevice],
        first: int,
        count: int,
        fixed: bool,
        then: Callable[[], bool],
    ) -> bool:
        """Pick `count` devices from `first` on, in order; with `fixed` each of them must be taken."""
        if not count:
            return then()
        for index in range(first, first + 1 if fixed else len(devices)):
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise TooLong(f"no answer after {MOST_STEPS:,} steps", subject="claim")
            device = devices[index]
            if not self._is_free(demand, device):
                continue
            undo = self._pick(Pick(name, device, demand), fixed)
            if undo is None:
                continue
            if self._devices(name, demand, devices, index + 1, count - 1, fixed, then):
                return True
            undo()
        return False

    def _is_free(self, demand: DeviceDemand, device: PoolDevice) -> bool:
        key = device.key
        if key[:2] in self._node.unusable:
            return False
        if key in self._taken or (key in self._node.used and not demand.admin_access):
            return False
        # In the scheduler's order: a selector that fails stops the search, even for a tainted device.
        if not self._demands.matches(demand, device):
            return False
        return self._has_capacity(demand, device) and not is_tainted(device, demand)

    def _has_capacity(self, demand: DeviceDemand, device: PoolDevice) -> bool:
        used = dict(self._node.shared.get(device.key, {}))
        for name, amount in self._allocating.get(device.key, {}).items():
            used[name] = used.get(name, ZERO) + amount
        return has_capacity(device.offered, _requested(demand), used)

    def _pick(self, pick: Pick, fixed: bool) -> Callable[[], None] | None:
        """Take a device if counters and constraints allow it; return what gives it back.

        A constraint that excludes one of all devices contradicts the request: the scheduler ends its search.
        """
        key, offered = pick.device.key, pick.device.offered
        counters = {} if self._is_open(key) else consumed_counters(key, offered)
        if any(self._counters.get(each, ZERO) < amount for each, amount in counters.items()):
            return None
        self._picks.append(pick)
        if not all(self._holds(each) for each in self._constraints):
            self._picks.pop()
            if fixed:
                raise _Contradiction
            return None
        before_counters, before = self._counters, self._allocating
        self._counters = before_counters | {
            each: before_counters[each] - amount for each, amount in counters.items()
        }
        if pick.device.is_shared:
            amounts = self._sum(before.get(key, {}), offered, pick.demand)
            self._allocating = before | {key: amounts}
        else:
            self._taken.add(key)

        def undo() -> None:
            self._picks.pop()
            self._counters, self._allocating = before_counters, before
            if not pick.device.is_shared:
                self._taken.discard(key)

        return undo

    def _is_open(self, key: DeviceKey) -> bool:
        """Tell whether a shared device has consumed its counters already."""
        return key in self._node.shared or key in self._allocating

    def _sum(
        self, before: Mapping[str, Quantity], offered: OfferedDevice, demand: DeviceDemand
    ) -> dict[str, Quantity]:
        return {
            name: before.get(name, ZERO) + amount
            for name, amount in consumed_amounts(offered, _requested(demand)).items()
        }

    def _holds(self, constraint: DeviceConstraint) -> bool:
        """Tell whether the picked devices satisfy a constraint so far."""
        names = constraint.requests or ()
        concerned = [
            pick.device
            for pick in self._picks
            if not names or pick.request in names or pick.request.partition("/")[0] in names
        ]
        wanted = constraint.match_attribute or constraint.distinct_attribute or ""
        values = [attribute_of(device, wanted) for device in concerned]
        if not all(value is not None and value[0] for value in values):
            return False
        different = len(set(values))
        return different <= 1 if constraint.match_attribute else different == len(values)
