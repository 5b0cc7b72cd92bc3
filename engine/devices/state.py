"""Holds the device manager's state without I/O: resources, and which containers hold what.

Events go in (a plugin connected, sent a list, went away; a pod got devices, is gone); capacity, hints and
the checkpoint come out. Time is an argument. Rules: kubelet v1.32 `pkg/kubelet/cm/devicemanager`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from engine._fast.devices import bitset
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.api.resources import pod_limits
from engine.devices.checkpoint import NO_NODE, Checkpoint, CheckpointEntry
from engine.devices.inventory import Inventory
from engine.devices.selection import SelectionError
from engine.topologymanager.policy import Hints, Numa

STOP_GRACE = 300.0
"""Seconds for which a resource keeps its capacity after its plugin went away."""


class DeviceResource(msgspec.Struct):
    """Hold one plugin resource.

    `listed`: it counts in the node's capacity. `connected`: its plugin is there; `reported`: the plugin has
    sent its devices. `prepares`: the plugin that connected last prepares devices before each start of a
    container. `stopped_at` is when the plugin went away, or when the agent started without it;
    `returned_at` when it came back.
    """

    name: str
    inventory: Inventory = msgspec.field(default_factory=Inventory)
    listed: bool = False
    connected: bool = False
    reported: bool = False
    prepares: bool = False
    stopped_at: float | None = None
    returned_at: float | None = None

    def is_back_since(self, moment: float) -> bool:
        """Tell whether the plugin had been here before, and came back after that moment."""
        return self.returned_at is not None and self.returned_at > moment

    def expired(self, now: float) -> bool:
        return self.stopped_at is not None and now - self.stopped_at > STOP_GRACE


def resource_hints(
    inventory: Inventory, numa: Numa, request: int, *, held: Collection[str], reusable: Collection[str]
) -> Hints:
    """Return NUMA hints for `request` devices.

    None if the resource has no NUMA nodes, empty if it cannot be met. `held` are devices that the container
    already has: its hints are then made from those alone.
    """
    if not inventory.aligned:
        return None
    if held:
        if len(held) != request:
            return []
        return inventory.counts(numa, inventory.bits(held), None, request)
    free = bitset.difference(inventory.healthy, inventory.allocated)
    if not reusable:
        return inventory.counts(numa, free, None, request) if bitset.count(free) >= request else []
    reusing = inventory.bits(reusable)
    unlisted = sum(
        1 for id in reusable if inventory.nodes_of(id) is None and not bitset.count(inventory.bits([id]))
    )
    either = bitset.count(free) + bitset.count_difference(reusing, free) + unlisted
    return inventory.counts(numa, free, reusing, request) if either >= request else []


class DeviceState:
    """Hold resources by name, and the devices that containers hold."""

    def __init__(self) -> None:
        self.resources: dict[str, DeviceResource] = {}
        self._held: dict[str, dict[str, dict[str, CheckpointEntry]]] = {}

    # Plugins

    def connect(self, name: str, now: float, *, prepares: bool = False) -> None:
        """Note that a plugin connected; its list has not come yet."""
        resource = self._resource(name)
        resource.prepares = prepares
        if resource.stopped_at is not None:
            resource.returned_at = now
        resource.connected, resource.reported, resource.stopped_at = True, False, None

    def receive(self, name: str, message: bytes) -> bool:
        """Apply the plugin's list of devices; return whether it changed anything. Raises `ValueError` for
        malformed bytes.
        """
        resource = self._resource(name)
        changed = resource.inventory.update(message)
        first = not (resource.listed and resource.reported)
        resource.listed = resource.reported = True
        return changed or first

    def disconnect(self, name: str, now: float) -> None:
        """Note that the plugin is gone: its devices are unhealthy, and its capacity ends after
        `STOP_GRACE`.
        """
        resource = self._resource(name)
        resource.connected, resource.reported, resource.listed = False, False, True
        resource.stopped_at = now
        resource.inventory.disconnect()

    def capacity(self, now: float) -> tuple[dict[str, int], dict[str, int], list[str]]:
        """Return (capacity, allocatable, resources removed now because their plugin stayed away too long)."""
        capacity: dict[str, int] = {}
        allocatable: dict[str, int] = {}
        removed: list[str] = []
        for name, resource in sorted(self.resources.items()):
            if not resource.listed:
                continue
            if resource.expired(now):
                removed.append(name)
                resource.listed = False
                self._drop_if_unused(name)
                continue
            capacity[name] = resource.inventory.listed_count
            allocatable[name] = resource.inventory.healthy_count
        return capacity, allocatable, removed

    # Requests

    def is_plugin_resource(self, name: str) -> bool:
        """Tell whether a plugin offers the resource or a container holds some of it."""
        resource = self.resources.get(name)
        return resource is not None and (resource.listed or resource.inventory.allocated_count > 0)

    def needs(self, container: Container) -> dict[str, int]:
        """Return the devices that the container asks for (its limits), by resource in order of name."""
        if not self.resources:
            return {}
        return self._only_devices(container.limits)

    def pod_needs(self, pod: Pod) -> dict[str, int]:
        """Return the largest number of devices that the pod needs at any time."""
        if not self.resources:
            return {}
        return self._only_devices(pod_limits(pod, overhead=False))

    def _only_devices(self, limits: Mapping[str, Quantity]) -> dict[str, int]:
        return {
            name: limits[name].value
            for name in sorted(limits)
            if limits[name].value > 0 and self.is_plugin_resource(name)
        }

    def still_needed(self, pod_uid: str, container: str, name: str, required: int) -> int | None:
        """Return 0 if the container has its devices, `required` if it has none; health does not matter here.

        Raises `SelectionError` if it has another number.
        """
        held = self.held(pod_uid, container, name)
        if held is None:
            return required
        if len(held.devices) != required:
            raise SelectionError(
                f'pod "{pod_uid}" container "{container}" changed request for resource "{name}" '
                f"from {len(held.devices)} to {required}"
            )
        return 0

    def check_health(self, name: str, held: CheckpointEntry | None) -> DeviceResource:
        """Return the resource if its plugin has registered and has healthy devices. Raises `SelectionError`
        otherwise.
        """
        resource = self.resources.get(name)
        if resource is None or not resource.listed:
            raise SelectionError(f"cannot allocate unregistered device {name}")
        if resource.inventory.healthy_count == 0:
            raise SelectionError(f"no healthy devices present; cannot allocate unhealthy devices {name}")
        if held is not None and not resource.inventory.is_healthy(held.devices):
            raise SelectionError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {name}"
            )
        return resource

    def container_hints(
        self, pod: Pod, container: Container, numa: Numa, reusable: Mapping[str, Collection[str]]
    ) -> dict[str, Hints]:
        """Return the hints of every device resource that the container needs."""
        hints: dict[str, Hints] = {}
        for name, required in self.needs(container).items():
            entry = self.held(pod.uid, container.name, name)
            hints[name] = resource_hints(
                self.resources[name].inventory,
                numa,
                required,
                held=entry.devices if entry else (),
                reusable=reusable.get(name, ()),
            )
        return hints

    def pod_hints(self, pod: Pod, numa: Numa) -> dict[str, Hints]:
        """Return the hints of every device resource that the pod needs; reusable devices do not
        count here.
        """
        hints: dict[str, Hints] = {}
        for name, required in self.pod_needs(pod).items():
            held = {
                id
                for entry in self.entries_of(pod.uid)
                if entry.resource_name == name
                for id in entry.devices
            }
            hints[name] = resource_hints(
                self.resources[name].inventory, numa, required, held=held, reusable=()
            )
        return hints

    # Assignments

    def claim(self, name: str, devices: Sequence[str]) -> None:
        """Take free devices."""
        self._resource(name).inventory.claim(devices)

    def release(self, name: str, devices: Collection[str]) -> None:
        """Undo a `claim`."""
        self.resources[name].inventory.release(devices)
        self._drop_if_unused(name)

    def assign(self, entry: CheckpointEntry) -> None:
        """Record that a container holds claimed devices."""
        containers = self._held.setdefault(entry.pod_uid, {})
        containers.setdefault(entry.container_name, {})[entry.resource_name] = entry

    def unassign(self, entry: CheckpointEntry) -> None:
        """Drop one record and release its devices."""
        containers = self._held[entry.pod_uid]
        resources = containers[entry.container_name]
        del resources[entry.resource_name]
        if not resources:
            del containers[entry.container_name]
        if not containers:
            del self._held[entry.pod_uid]
        self.release(entry.resource_name, entry.devices)

    def make_entry(
        self, pod_uid: str, container: str, name: str, devices: Sequence[str], response: bytes
    ) -> CheckpointEntry:
        """Build the record of an allocation, listing the devices at each of their NUMA nodes."""
        by_node: dict[int, list[str] | None] = {}
        inventory = self.resources[name].inventory
        for device in devices:
            for node in inventory.nodes_of(device) or (NO_NODE,):
                listed = by_node.setdefault(node, [])
                assert listed is not None
                listed.append(device)
        return CheckpointEntry(
            pod_uid=pod_uid,
            container_name=container,
            resource_name=name,
            device_ids=by_node,
            alloc_resp=response,
        )

    def held(self, pod_uid: str, container: str, name: str) -> CheckpointEntry | None:
        return self._held.get(pod_uid, {}).get(container, {}).get(name)

    def entries_of(self, pod_uid: str, container: str | None = None) -> list[CheckpointEntry]:
        """Return the records of a pod, or of one of its containers, by container and resource."""
        containers = self._held.get(pod_uid, {})
        return [
            entry
            for name, resources in containers.items()
            if container is None or name == container
            for _, entry in sorted(resources.items())
        ]

    def entries(self) -> Iterator[CheckpointEntry]:
        for containers in self._held.values():
            for resources in containers.values():
                yield from resources.values()

    @property
    def pods(self) -> list[str]:
        return list(self._held)

    def forget(self, pod_uid: str) -> bool:
        """Release all devices of a pod; return whether it had any."""
        entries = self.entries_of(pod_uid)
        for entry in entries:
            self.unassign(entry)
        return bool(entries)

    def collect(self, keep: Collection[str]) -> list[str]:
        """Release the devices of pods that are not in `keep`; return their uids."""
        gone = [uid for uid in self._held if uid not in keep]
        for uid in gone:
            self.forget(uid)
        return gone

    def allocated(self) -> dict[str, int]:
        """Return the devices in use per resource."""
        counts = {name: resource.inventory.allocated_count for name, resource in self.resources.items()}
        return {name: count for name, count in counts.items() if count}

    # Checkpoint

    def snapshot(self) -> Checkpoint:
        """Return the content of the checkpoint."""
        registered: dict[str, list[str] | None] = {
            name: resource.inventory.healthy_names()
            for name, resource in self.resources.items()
            if resource.listed
        }
        return Checkpoint(pod_device_entries=list(self.entries()) or None, registered_devices=registered)

    def restore(self, checkpoint: Checkpoint, now: float) -> None:
        """Restore a checkpoint: assignments as they were, resources at zero until plugins register."""
        for name in checkpoint.registered_devices or {}:
            resource = self._resource(name)
            resource.listed, resource.stopped_at = True, now
        for entry in checkpoint.pod_device_entries or []:
            self.claim(entry.resource_name, sorted(entry.devices))
            self.assign(entry)

    def _resource(self, name: str) -> DeviceResource:
        resource = self.resources.get(name)
        if resource is None:
            resource = self.resources[name] = DeviceResource(name)
        return resource

    def _drop_if_unused(self, name: str) -> None:
        resource = self.resources[name]
        if not (resource.listed or resource.connected or resource.inventory.allocated_count):
            del self.resources[name]
