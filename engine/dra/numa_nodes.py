"""Finds the NUMA nodes of allocated devices, and the hints that follow from them. Pure.

The scheduler has allocated the devices of a claim before its pod comes to the node, so their location is
given: CPUs, memory and devices of plugins can only follow. The kubelet (v1.36) has no hints for claims.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from engine.api.objects.dynamic_resources import DeviceAttribute, ResourceClaim, ResourceSlice
from engine.dra.claims import base_request
from engine.topologymanager.policy import Hints, Numa
from engine.topologymanager.search import DeviceCounts

STANDARD: Final = "resource.kubernetes.io/"
PCI_BUS_ID: Final = STANDARD + "pciBusID"
PCIE_ROOT: Final = STANDARD + "pcieRoot"
NUMA_NODES: Final = (STANDARD + "numaNode", "numaNode")
"""Standard attribute names; without a domain an attribute is the driver's own."""

_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")

DeviceName = tuple[str, str, str]
"""Driver, pool and device."""


class PciNodes(Protocol):
    """Look up the NUMA nodes of PCI devices in the kernel."""

    def of_device(self, bus_id: str) -> int | None: ...

    def of_root(self, root: str) -> int | None:
        """Return the node of a PCIe root complex, if all of its devices are at one."""


class DeviceLocation(msgspec.Struct, frozen=True):
    """Hold an allocated device: its claim's name, its request, and its NUMA node with the attribute that
    names it.

    Without a node, the location of the device is unknown.
    """

    claim: str
    request: str
    device: DeviceName
    numa: int | None = None
    by: str = ""


def locate_devices(
    claims: Iterable[ResourceClaim], slices: Iterable[ResourceSlice], pci: PciNodes
) -> list[DeviceLocation]:
    """Return the location of every allocated device, except devices that are only watched (admin access)."""
    attributes = _attributes(slices)
    locations = []
    for claim in claims:
        for result in claim.allocated:
            if result.admin_access:
                continue
            device = (result.driver, result.pool, result.device)
            numa, by = _node(attributes.get(device, {}), pci)
            locations.append(
                DeviceLocation(claim.metadata.name, base_request(result.request), device, numa, by)
            )
    return locations


def unlisted(claims: Iterable[ResourceClaim], slices: Iterable[ResourceSlice]) -> set[DeviceName]:
    """Return the allocated devices that are in none of the slices."""
    listed = _attributes(slices)
    allocated = {(r.driver, r.pool, r.device) for claim in claims for r in claim.allocated}
    return allocated - listed.keys()


def _attributes(slices: Iterable[ResourceSlice]) -> dict[DeviceName, Mapping[str, DeviceAttribute]]:
    """Return the attributes of every device in the newest generation of its pool."""
    newest: dict[tuple[str, str], int] = {}
    known = list(slices)
    for each in known:
        pool = (each.spec.driver, each.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), each.spec.pool.generation)
    return {
        (each.spec.driver, each.spec.pool.name, device.name): device.attributes or {}
        for each in known
        if each.spec.pool.generation == newest[each.spec.driver, each.spec.pool.name]
        for device in each.spec.devices or ()
    }


def _node(attributes: Mapping[str, DeviceAttribute], pci: PciNodes) -> tuple[int | None, str]:
    """Return the node and the attribute that leads to it; the kernel's word comes before the driver's."""
    for name, pattern, find in ((PCI_BUS_ID, _BUS_ID, pci.of_device), (PCIE_ROOT, _ROOT, pci.of_root)):
        value = attributes[name].string if name in attributes else None
        if value is not None and pattern.fullmatch(value):
            found = find(value)
            if found is not None:
                return found, name
    for name in NUMA_NODES:
        number = attributes[name].number if name in attributes else None
        if number is not None and number >= 0:
            return number, name
    return None, ""


def claim_hints(
    locations: Sequence[DeviceLocation], numa: Numa, used: Iterable[tuple[str, str]] | None = None
) -> dict[str, Hints]:
    """Return hints by claim, from all locations or from those of the `used` (claim, request) pairs.

    An empty request stands for all requests of a claim. The devices of a claim are hinted as those that a
    container of a device plugin already holds: preferred are the fewest nodes that touch them all.
    """
    wanted = None if used is None else set(used)
    groups: dict[str, Counter[int]] = {}
    for location in locations:
        mask = numa.mask([location.numa]) if location.numa is not None else 0
        named = (
            wanted is None or (location.claim, "") in wanted or (location.claim, location.request) in wanted
        )
        if mask and named:
            groups.setdefault(location.claim, Counter())[mask] += 1
    return {
        f"ResourceClaim {claim}": DeviceCounts(
            groups=tuple(counts),
            everything=tuple(counts.values()),
            available=tuple(counts.values()),
            reusable=(0,) * len(counts),
            request=counts.total(),
        )
        for claim, counts in sorted(groups.items())
    }


def in_words(locations: Iterable[DeviceLocation]) -> str:
    """Return where the devices of each claim are: `ResourceClaim gpu at NUMA node 1`."""
    nodes: dict[str, set[int]] = {}
    for location in locations:
        if location.numa is not None:
            nodes.setdefault(location.claim, set()).add(location.numa)
    return ", ".join(
        f"ResourceClaim {claim} at NUMA node{'s' if len(at) > 1 else ''} {', '.join(map(str, sorted(at)))}"
        for claim, at in sorted(nodes.items())
    )
