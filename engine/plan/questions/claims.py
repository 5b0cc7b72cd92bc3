"""Compute on which nodes a ResourceClaim could be allocated, how often, and what prevents more.

`engine.plan.claims` allocates as the scheduler v1.36 does, from the ResourceSlices, ResourceClaims and
DeviceClasses of the snapshot. Nodes are examined one by one. Other requests of the claim's pod (CPU, memory)
are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.claims.allocation import Demands, Pick, TooLong, allocate, is_tainted, take
from engine.plan.claims.known import claims_of_file, dynamic_resources
from engine.plan.claims.objects import (
    DeviceClaim,
    DeviceConstraint,
    DeviceDemand,
    DeviceRequest,
    PlannedClaim,
    PlannedClaimSpec,
)
from engine.plan.claims.pools import NodeDevices, PoolDevice
from engine.plan.claims.selectors import SelectorError
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import node_object

MAX_ALLOCATIONS = 1000
"""How often one claim is allocated on one node before counting ends."""
LIMITS = "not checked: requests of the claims' pods, and constraints of pods on nodes"


class ClaimsParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of claims: a manifest, or a class with counts."""

    file: Annotated[str, Meta(description="manifest with ResourceClaims or ResourceClaimTemplates")] = ""
    device_class: Annotated[str, Meta(description="instead of a file: claims of this DeviceClass")] = ""
    counts: Annotated[
        list[Annotated[int, Meta(ge=1, le=32)]], Meta(description="with a class: devices of one claim")
    ] = msgspec.field(default_factory=lambda: [1, 2, 4, 8])
    match_attribute: Annotated[
        str, Meta(description="with a class: attribute that all devices of a claim must share")
    ] = ""


def claims(snapshot: Snapshot, parameters: ClaimsParameters) -> Answer:
    """Return for each node with matching devices `free` (amount: devices that are neither in use nor
    tainted).

    For each claim follows `allocates` (amount: how often, one after another), `fragmented` (enough devices
    are free, but a constraint, counter or capacity prevents the allocation), `full`, or `unknown` if a
    selector fails for a device. Raise `InvalidInput` for a claim that the allocator cannot handle.
    """
    rows = Rows(snapshot.node_names)
    requested = _requested_claims(parameters)
    known = dynamic_resources(snapshot)
    demands = known.demands
    for claim in requested:
        demands.check(claim.spec)
    inventory = known.inventory()
    if inventory.doubtful:
        rows.note("pools with missing slices or repeated devices, which are not used", inventory.doubtful)
    rows.note(LIMITS)
    for node, name in enumerate(snapshot.node_names):
        devices = inventory.of_node(name, node_object(snapshot, node).labels)
        _Node(rows, node, devices, demands).add_claims(requested)
    return rows.answer(sort=True)


def _requested_claims(parameters: ClaimsParameters) -> list[PlannedClaim]:
    """Return the claims of the manifest, or one per count of devices of the class."""
    if bool(parameters.file) == bool(parameters.device_class):
        raise InvalidInput("name a manifest with claims, or a device class", subject="file")
    if parameters.file:
        return claims_of_file(parameters.file)
    constraints = [DeviceConstraint(match_attribute=parameters.match_attribute)]
    found = []
    for count in parameters.counts:
        demand = DeviceDemand(device_class_name=parameters.device_class, count=count)
        request = DeviceRequest(name="devices", exactly=demand)
        spec = PlannedClaimSpec(
            devices=DeviceClaim(
                requests=[request], constraints=constraints if parameters.match_attribute else None
            )
        )
        claim = PlannedClaim(spec=spec)
        claim.metadata.name = f"{count} {parameters.device_class}"
        found.append(claim)
    return found


@dataclass
class _Node:
    """Add the rows of one node; `named` are the device classes that have a row `free` already."""

    rows: Rows
    node: int
    devices: NodeDevices
    demands: Demands
    named: set[str] = field(default_factory=set)

    def add_claims(self, claims: list[PlannedClaim]) -> None:
        """Add the rows of each claim, without effect on the next one."""
        for claim in claims:
            name = claim.metadata.name
            try:
                matching = self._matching(claim.spec)
                if matching:
                    self._allocate(name, claim.spec, self._free(claim.spec, matching))
            except (SelectorError, TooLong) as error:
                self.rows.add(self.node, "unknown", name, str(error), 0, "devices")

    def _matching(self, spec: PlannedClaimSpec) -> list[PoolDevice]:
        """Return the devices that match some request of a claim. Raise `SelectorError`."""
        wanted = [demand for request in spec.devices.requests or () for demand in request.demands]
        return [
            device
            for device in self.devices.devices
            if any(self.demands.matches(demand, device) for demand in wanted)
        ]

    def _free(self, spec: PlannedClaimSpec, matching: list[PoolDevice]) -> int:
        """Return how many of the matching devices are free; add a row `free` for classes without one."""
        free = sum(1 for device in matching if _is_free(device, self.devices))
        tainted = sum(1 for device in matching if is_tainted(device, DeviceDemand()))
        classes = {each.device_class_name for r in spec.devices.requests or () for each in r.demands}
        label = ", ".join(sorted(classes))
        if label not in self.named:
            self.named.add(label)
            state = f"of {len(matching)}" + (f", {tainted} tainted" if tainted else "")
            self.rows.add(self.node, "free", label, state, free, "devices")
        return free

    def _allocate(self, name: str, spec: PlannedClaimSpec, free: int) -> None:
        """Allocate a claim again and again, and add a row for the result. Raise `SelectorError` or
        `TooLong`.
        """
        times, first, left = 0, list[Pick](), self.devices
        while times < MAX_ALLOCATIONS and (picks := allocate(spec, left, self.demands)):
            first = first or picks
            left = take(picks, left)
            times += 1
            # A request with admin access does not use up devices: the claim could be allocated without end.
            if all(pick.demand.admin_access for pick in picks):
                break
        if times:
            reason = "first " + ", ".join(pick.device.key[2] for pick in first)
            self.rows.add(self.node, "allocates", name, reason, times, "times")
            return
        obstacle = _obstacle(spec, self.devices, self.demands)
        wanted = _least(spec)
        if free >= wanted and obstacle:
            self.rows.add(self.node, "fragmented", name, obstacle, free, "devices")
        else:
            self.rows.add(self.node, "full", name, f"{free} free of {wanted}", free, "devices")


def _is_free(device: PoolDevice, devices: NodeDevices) -> bool:
    """Return whether a device is untainted, in no claim, and in a complete pool."""
    untainted = not is_tainted(device, DeviceDemand())
    return untainted and device.key not in devices.used and device.key[:2] not in devices.unusable


def _least(spec: PlannedClaimSpec) -> int:
    """Return the smallest number of devices that can satisfy a claim. A request for all devices needs one."""
    return sum(
        min(1 if demand.allocation_mode == "All" else demand.count for demand in request.demands)
        for request in spec.devices.requests or ()
    )


def _obstacle(spec: PlannedClaimSpec, devices: NodeDevices, demands: Demands) -> str:
    """Return the rule without which the free devices would satisfy a claim, or "".

    Rules are dropped one at a time, then all constraints together, then the shared counters of partitions.
    """
    constraints = spec.devices.constraints or []
    for dropped in constraints:
        others = [each for each in constraints if each is not dropped]
        relaxed = PlannedClaimSpec(devices=msgspec.structs.replace(spec.devices, constraints=others))
        if allocate(relaxed, devices, demands) is not None:
            shared = dropped.match_attribute
            how = f"share {shared}" if shared else f"differ in {dropped.distinct_attribute}"
            return f"no free devices that {how}"
    bare = PlannedClaimSpec(devices=msgspec.structs.replace(spec.devices, constraints=None))
    if constraints and allocate(bare, devices, demands) is not None:
        return "no free devices that meet all constraints together"
    uncounted = [
        replace(device, offered=msgspec.structs.replace(device.offered, consumes_counters=None))
        for device in devices.devices
    ]
    if allocate(bare, replace(devices, devices=uncounted), demands) is not None:
        return "partitions in use leave too little of their pool's counters"
    return ""
