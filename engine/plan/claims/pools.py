"""Collect the devices that drivers offer to each node, and what claims have of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.admission.selectors import selects
from engine.api.quantity import Quantity
from engine.api.scheduling import NodeSelector
from engine.plan.claims.capacity import ZERO
from engine.plan.claims.objects import (
    AllocatedDevice,
    DeviceTaint,
    DeviceTaintRule,
    OfferedDevice,
    OfferedSlice,
    PlannedClaim,
    SliceSpec,
)

PoolKey = tuple[str, str]
"""Driver and pool."""
DeviceKey = tuple[str, str, str]
"""Driver, pool and device."""
CounterKey = tuple[str, str, str, str]
"""Driver, pool, counter set and counter."""


_Offer = tuple[int, DeviceKey, OfferedDevice]
"""The number of a device in the order in which the scheduler tries them, and the device."""


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """Hold one offered device, with the taints of its slice and of every rule that selects it."""

    key: DeviceKey
    offered: OfferedDevice
    taints: tuple[DeviceTaint, ...] = ()

    @property
    def driver(self) -> str:
        return self.key[0]

    @property
    def is_shared(self) -> bool:
        """Tell whether several claims can each consume a part."""
        return bool(self.offered.allow_multiple_allocations)


@dataclass
class NodeDevices:
    """Hold the devices that a node can use, and their use by claims that have devices already.

    `unusable` names the pools for this node of which slices are missing, or that repeat a device: nothing is
    allocated from them.
    """

    devices: list[PoolDevice]
    counters: dict[CounterKey, Quantity]
    used: set[DeviceKey] = field(default_factory=set)
    shared: dict[DeviceKey, dict[str, Quantity]] = field(default_factory=dict)
    unusable: frozenset[PoolKey] = frozenset()


@dataclass
class _Pool:
    generation: int
    slices: list[OfferedSlice]

    @property
    def is_complete(self) -> bool:
        return len(self.slices) == self.slices[0].spec.pool.resource_slice_count


class DeviceInventory:
    """Hold the newest generation of each pool and the use of its devices.

    Facts of the scheduler v1.36: a pool of which slices are missing, or that names a device twice, is not
    allocated from; devices that only administrators watch are not in use.
    """

    def __init__(
        self,
        slices: Iterable[OfferedSlice],
        claims: Iterable[PlannedClaim],
        rules: Iterable[DeviceTaintRule] = (),
    ) -> None:
        self._rules = list(rules)
        self._pools = _newest(slices)
        self._doubtful = {
            name for name, pool in self._pools.items() if not pool.is_complete or _repeats(pool.slices)
        }
        self._local: dict[str, list[_Offer]] = defaultdict(list)
        self._reachable: list[tuple[_Offer, NodeSelector | None]] = []
        self._offered: dict[DeviceKey, OfferedDevice] = {}
        self._of_one_node: set[DeviceKey] = set()
        self.counters: dict[CounterKey, Quantity] = {}
        for name in sorted(self._pools):
            for each in self._pools[name].slices:
                self._add(each)
        self.used: set[DeviceKey] = set()
        self.shared: dict[DeviceKey, dict[str, Quantity]] = {}
        self._holders: Counter[DeviceKey] = Counter()
        for claim in claims:
            for result in claim.allocated:
                self.use(result)

    def of_node(self, name: str, labels: Mapping[str, str]) -> NodeDevices:
        """Return the devices that the node can use; the counters and the use are shared by all nodes."""
        offers = [*self._local.get(name, ())]
        offers += [
            offer
            for offer, selector in self._reachable
            if selector is None or selects(selector, labels, name)
        ]
        found = [self._device(key, device) for _, key, device in sorted(offers, key=lambda offer: offer[0])]
        unusable = frozenset(key for key in self._doubtful if self._is_unusable(key, name, labels))
        return NodeDevices(found, self.counters, self.used, self.shared, unusable)

    @property
    def doubtful(self) -> int:
        """Return the number of pools that lack slices or repeat a device."""
        return len(self._doubtful)

    @property
    def keys(self) -> list[DeviceKey]:
        """Return the names of all offered devices."""
        return list(self._offered)

    def _is_unusable(self, key: PoolKey, name: str, labels: Mapping[str, str]) -> bool:
        """Tell whether a pool lacks slices, or the node's part of it repeats a device.

        Slices of counters belong to every node.
        """
        pool = self._pools[key]
        concerned = [each for each in pool.slices if _concerns(each.spec, name, labels)]
        return bool(concerned) and (not pool.is_complete or _repeats(concerned))

    def _add(self, each: OfferedSlice) -> None:
        spec = each.spec
        for counter_set in spec.shared_counters or ():
            for name, counter in (counter_set.counters or {}).items():
                self.counters[spec.driver, spec.pool.name, counter_set.name, name] = counter.value
        for device in spec.devices or ():
            key = (spec.driver, spec.pool.name, device.name)
            offer = (len(self._offered), key, device)
            self._offered[key] = device
            at = device if spec.per_device_node_selection else spec
            if at.node_name:
                self._local[at.node_name].append(offer)
                self._of_one_node.add(key)
            elif at.all_nodes:
                self._reachable.append((offer, None))
            elif at.node_selector is not None:
                self._reachable.append((offer, at.node_selector))

    def _device(self, key: DeviceKey, device: OfferedDevice) -> PoolDevice:
        return PoolDevice(key, device, self._taints(key, device))

    def _taints(self, key: DeviceKey, device: OfferedDevice) -> tuple[DeviceTaint, ...]:
        ruled = (rule.spec.taint for rule in self._rules if is_selected(rule, key))
        return (*(device.taints or ()), *ruled)

    def may_serve(self, node: str) -> bool:
        """Tell whether a node may have devices; exact if no device is offered to several nodes."""
        return bool(self._reachable) or node in self._local

    def use(self, result: AllocatedDevice) -> None:
        """Count a device of a claim as in use."""
        if result.admin_access:
            return
        key = result.key
        self._holders[key] += 1
        if result.share_id is not None:
            amounts = self.shared.setdefault(key, {})
            for name, amount in (result.consumed_capacity or {}).items():
                amounts[name] = amounts.get(name, ZERO) + amount
        else:
            self.used.add(key)
        if self._holders[key] == 1:
            self._consume(key, 1)

    def release(self, result: AllocatedDevice) -> None:
        """Count a device of a claim no longer; the claim had it."""
        if result.admin_access:
            return
        key = result.key
        self._holders[key] -= 1
        for name, amount in (result.consumed_capacity or {}).items():
            if key in self.shared:
                self.shared[key][name] = self.shared[key].get(name, ZERO) - amount
        if not self._holders[key]:
            self.used.discard(key)
            self.shared.pop(key, None)
            self._consume(key, -1)

    def are_free(self, results: Iterable[AllocatedDevice]) -> bool:
        """Tell whether nothing has any of these devices."""
        return not any(self._holders[one.key] for one in results if not one.admin_access)

    def is_local(self, key: DeviceKey) -> bool:
        """Tell whether a device belongs to one node."""
        return key in self._of_one_node

    def _consume(self, key: DeviceKey, sign: int) -> None:
        """Take what a device consumes from its pool's counters, or give it back with `sign` -1."""
        offered = self._offered.get(key)
        if offered is not None:
            for counter, amount in consumed_counters(key, offered).items():
                left = self.counters.get(counter, ZERO)
                self.counters[counter] = left - amount if sign > 0 else left + amount


def consumed_counters(key: DeviceKey, device: OfferedDevice) -> dict[CounterKey, Quantity]:
    """Return what a device consumes of its pool's counters."""
    found: dict[CounterKey, Quantity] = {}
    for each in device.consumes_counters or ():
        for name, counter in (each.counters or {}).items():
            at = (key[0], key[1], each.counter_set, name)
            found[at] = found.get(at, ZERO) + counter.value
    return found


def is_selected(rule: DeviceTaintRule, key: DeviceKey) -> bool:
    """Tell whether a rule taints a device; a rule without a selector taints none, an empty one every one."""
    selector = rule.spec.device_selector
    return selector is not None and all(
        wanted is None or wanted == name
        for wanted, name in zip((selector.driver, selector.pool, selector.device), key, strict=True)
    )


def _concerns(spec: SliceSpec, name: str, labels: Mapping[str, str]) -> bool:
    places = (spec.devices or ()) if spec.per_device_node_selection else (spec,)
    return bool(spec.shared_counters) or any(_reaches(place, name, labels) for place in places)


def _reaches(place: SliceSpec | OfferedDevice, name: str, labels: Mapping[str, str]) -> bool:
    if place.node_name or place.all_nodes:
        return bool(place.all_nodes) or place.node_name == name
    return place.node_selector is not None and selects(place.node_selector, labels, name)


def _newest(slices: Iterable[OfferedSlice]) -> dict[PoolKey, _Pool]:
    pools: dict[PoolKey, _Pool] = {}
    for each in slices:
        name, generation = (each.spec.driver, each.spec.pool.name), each.spec.pool.generation
        known = pools.get(name)
        if known is None or known.generation < generation:
            pools[name] = _Pool(generation, [each])
        elif known.generation == generation:
            known.slices.append(each)
    for pool in pools.values():
        pool.slices.sort(key=lambda each: each.metadata.name)
    return pools


def _repeats(slices: Iterable[OfferedSlice]) -> bool:
    names = Counter(device.name for each in slices for device in each.spec.devices or ())
    return any(count > 1 for count in names.values())
