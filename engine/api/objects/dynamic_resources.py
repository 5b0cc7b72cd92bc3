"""resource.k8s.io/v1: claims and slices, as far as a node and the planner read them.

Facts: Kubernetes v1.36, `staging/src/k8s.io/api/resource/v1`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.struct import Struct

API: Final = "/apis/resource.k8s.io/v1"


class DeviceAllocation(Struct):
    """Name one device that the scheduler allocated for a request of a claim.

    `request` is `name` or, from a prioritized list, `name/subrequest`. `share_id` tells apart the shares of a
    device that several claims consume a part of.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = None


class DeviceAllocations(Struct):
    results: list[DeviceAllocation] | None = None


class Allocation(Struct):
    devices: DeviceAllocations = msgspec.field(default_factory=DeviceAllocations)


class ClaimConsumer(Struct):
    """Name an object that may use a claim: a pod, by its uid."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Struct):
    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] | None = None


class ResourceClaim(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def allocated(self) -> list[DeviceAllocation]:
        """Return every allocated device; empty where nothing is allocated."""
        allocation = self.status.allocation
        return (allocation.devices.results if allocation is not None else None) or []


class DeviceAttribute(Struct):
    """Hold one value, of one of the kinds; an API server sends lists only behind an alpha gate."""

    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class SliceDevice(Struct):
    """Describe a device that a driver offers. Attribute names without a domain belong to the driver's own."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    taints: list[dict[str, Any]] | None = None


class ResourcePool(Struct):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Struct):
    driver: str = ""
    pool: ResourcePool = msgspec.field(default_factory=ResourcePool)
    node_name: str | None = None
    devices: list[SliceDevice] | None = None


class ResourceSlice(Struct):
    """List devices of one driver's pool."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)


class ResourceSliceList(Struct):
    items: list[ResourceSlice] | None = None
