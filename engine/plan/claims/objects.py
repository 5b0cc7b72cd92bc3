"""resource.k8s.io objects with the fields that decide an allocation, in the shape of version v1.

Source: Kubernetes v1.36, `staging/src/k8s.io/api/resource/v1`. `as_v1` converts documents of v1beta1.
The agent, which does not allocate, reads fewer fields (`engine.api.objects.dynamic_resources`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.quantity import Quantity
from engine.api.scheduling import NodeSelector, Toleration
from engine.api.struct import Struct

_FLAT_REQUEST = (
    "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity",
)  # fmt: skip
"""Fields that v1beta1 has in a request itself, and later versions in its `exactly`."""


class CapacityRange(Struct):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityPolicy(Struct):
    """Define how a request for a part of a device is rounded; `default` is the amount of claims that name
    none.
    """

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: CapacityRange | None = None


class DeviceCapacity(Struct):
    value: Quantity
    request_policy: CapacityPolicy | None = None


class Counter(Struct):
    value: Quantity


class CounterSet(Struct):
    """Hold counters that the partitions of one piece of hardware consume together."""

    name: str
    counters: dict[str, Counter] | None = None


class CounterConsumption(Struct):
    counter_set: str
    counters: dict[str, Counter] | None = None


class OfferedAttribute(Struct):
    """Hold one value, of one of the kinds."""

    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None

    @property
    def value(self) -> tuple[str, Any]:
        """Return the kind and the value, which two devices must share to match."""
        for kind, value in (
            ("int", self.number), ("bool", self.flag), ("string", self.string), ("version", self.version),
        ):  # fmt: skip
            if value is not None:
                return kind, value
        return "", None


class DeviceTaint(Struct):
    key: str
    value: str = ""
    effect: str = ""


class OfferedDevice(Struct):
    """Describe a device of a slice. Names of attributes and capacities without a domain belong to the
    driver's own.
    """

    name: str
    attributes: dict[str, OfferedAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[DeviceTaint] | None = None
    allow_multiple_allocations: bool | None = None


class Pool(Struct):
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Struct):
    driver: str
    pool: Pool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[OfferedDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class OfferedSlice(Struct):
    spec: SliceSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class CELSelector(Struct):
    expression: str


class DeviceSelector(Struct):
    cel: CELSelector | None = None


class DeviceClassSpec(Struct):
    selectors: list[DeviceSelector] | None = None


class DeviceClass(Struct):
    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class CapacityRequest(Struct):
    requests: dict[str, Quantity] | None = None


class DeviceDemand(Struct):
    """Describe one way to meet a request: some devices of a class, or all of them."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: Literal["", "ExactCount", "All"] = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    capacity: CapacityRequest | None = None


class DeviceRequest(Struct):
    """Request devices: `exactly` one demand, or the `first_available` of several."""

    name: str
    exactly: DeviceDemand | None = None
    first_available: list[DeviceDemand] | None = None

    @property
    def demands(self) -> list[DeviceDemand]:
        return [self.exactly] if self.exactly is not None else self.first_available or []


class DeviceConstraint(Struct):
    """Constrain these requests (all without names): their devices share an attribute's value, or all differ
    in it.
    """

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Struct):
    requests: list[DeviceRequest] | None = None
    constraints: list[DeviceConstraint] | None = None


class PlannedClaimSpec(Struct):
    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(Struct):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Return driver, pool and device."""
        return self.driver, self.pool, self.device


class AllocatedDevices(Struct):
    results: list[AllocatedDevice] | None = None


class PlannedAllocation(Struct):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)
    node_selector: NodeSelector | None = None


class PlannedConsumer(Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Struct):
    allocation: PlannedAllocation | None = None
    reserved_for: list[PlannedConsumer] | None = None


class PlannedClaim(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PlannedClaimSpec = msgspec.field(default_factory=PlannedClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def allocated(self) -> list[AllocatedDevice]:
        allocation = self.status.allocation
        return (allocation.devices.results if allocation is not None else None) or []


class TemplateSpec(Struct):
    spec: PlannedClaimSpec


class ResourceClaimTemplate(Struct):
    spec: TemplateSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class TaintSelector(Struct):
    """Select the devices that a rule taints: those that match every given field."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class TaintRuleSpec(Struct):
    taint: DeviceTaint
    device_selector: TaintSelector | None = None


class DeviceTaintRule(Struct):
    spec: TaintRuleSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


KINDS: dict[
    str, type[OfferedSlice | PlannedClaim | ResourceClaimTemplate | DeviceClass | DeviceTaintRule]
] = {
    "ResourceSlice": OfferedSlice,
    "ResourceClaim": PlannedClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
}
"""Kinds that a snapshot keeps."""


def as_v1(kind: str, document: Any) -> Any:
    """Return a document of any served version in the shape of v1; other parts are shared with the input.

    v1beta1 has a device's fields in `basic`, and a request's demand in the request itself.
    """
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return document
    spec = document["spec"]
    if kind == "ResourceSlice":
        devices = [_device(each) for each in spec.get("devices") or ()]
        return document | {"spec": spec | {"devices": devices}}
    if kind == "ResourceClaim":
        return document | {"spec": _claim_spec(spec)}
    if kind == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        return document | {"spec": spec | {"spec": _claim_spec(spec["spec"])}}
    return document


def _device(device: Any) -> Any:
    if isinstance(device, dict) and isinstance(device.get("basic"), dict):
        return {"name": device.get("name"), **device["basic"]}
    return device


def _claim_spec(spec: dict[str, Any]) -> dict[str, Any]:
    devices = spec.get("devices")
    if not isinstance(devices, dict):
        return spec
    requests = [_request(each) for each in devices.get("requests") or ()]
    return spec | {"devices": devices | {"requests": requests}}


def _request(request: Any) -> Any:
    if not isinstance(request, dict) or "deviceClassName" not in request:
        return request
    exactly = {name: request[name] for name in _FLAT_REQUEST if name in request}
    return {"name": request.get("name"), "exactly": exactly}
