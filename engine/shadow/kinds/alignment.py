"""Merge the hints of CPUs, memory and devices for a container, as the topology manager does. Pure.

Free devices are those of the device checkpoint at the observation before. Their NUMA nodes come from the
pod-resources API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from engine.api.pod import Container, Pod
from engine.devices.allocation import TOPOLOGY_MESSAGE
from engine.devices.checkpoint import Checkpoint
from engine.devices.state import DeviceState
from engine.shadow.kinds.observation import Observation
from engine.topologymanager.policy import Hint, Hints, TopologyPolicy
from engine.topologymanager.provider import AllocationError
from engine.wire import deviceplugin_v1beta1_pb2 as plugin_api

HEALTHY: Final = "Healthy"


class ManagerHints(Protocol):
    """Return the hints of one manager, after the assignments to earlier containers of the observation."""

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None: ...

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None: ...


class Alignment:
    """Compute the hints of the new containers of one observation. `before` is the observation before it."""

    def __init__(self, policy: TopologyPolicy, seen: Observation, before: Observation | None) -> None:
        self._policy = policy
        self._now = seen.devices or Checkpoint()
        self._known = seen.resources is not None
        self._devices = DeviceState()
        if policy.name != "none" and self._known and before is not None:
            self._devices = _devices(seen, before.devices or Checkpoint())

    def obstacle(self, pod: Pod) -> str:
        """Return the reason why the hints of a pod cannot be computed again, "" if they can."""
        registered = self._now.registered_devices or {}
        if self._policy.name == "none" or not any(registered.keys() & c.limits for c in pod.all_containers):
            return ""
        if not self._known:
            return "the NUMA nodes of its devices are not known"
        if any(registered.keys() & container.limits for container in pod.init_containers):
            return "its init containers have devices"
        return ""

    def hint(self, pod: Pod, container: Container, managers: Sequence[ManagerHints]) -> Hint:
        """Return the merged hint. Raise `AllocationError` if the policy does not admit the pod."""
        numa = self._policy.numa
        hints: list[Mapping[str, Hints] | None]
        if self._policy.scope == "pod":
            hints = [self._devices.pod_hints(pod, numa), *(one.pod_hints(pod) for one in managers)]
        else:
            hints = [self._devices.container_hints(pod, container, numa, {})]
            hints += [one.container_hints(pod, container) for one in managers]
        decision = self._policy.decide(hints)
        if not decision.admit:
            raise AllocationError(TOPOLOGY_MESSAGE)
        return decision.hint

    def assign_devices(self, pod: Pod) -> None:
        """Assign to a pod the devices that the kubelet assigned to it, so that they are no longer free."""
        if self._policy.name == "none":
            return
        for entry in self._now.pod_device_entries or ():
            if entry.pod_uid == pod.uid and not self._devices.entries_of(pod.uid, entry.container_name):
                self._devices.claim(entry.resource_name, sorted(entry.devices))
                self._devices.assign(entry)


def _devices(seen: Observation, before: Checkpoint) -> DeviceState:
    """Return the devices with their NUMA nodes, and the assignments of the checkpoint `before`."""
    assert seen.resources is not None
    listed: dict[str, list[plugin_api.Device]] = {}
    for one in seen.resources.allocatable.devices:
        nodes = [plugin_api.NUMANode(ID=node.ID) for node in one.topology.nodes]
        topology = plugin_api.TopologyInfo(nodes=nodes) if nodes else None
        listed.setdefault(one.resource_name, []).extend(
            plugin_api.Device(ID=id, health=HEALTHY, topology=topology) for id in one.device_ids
        )
    state = DeviceState()
    for resource, devices in listed.items():
        state.connect(resource, seen.now)
        state.receive(resource, plugin_api.ListAndWatchResponse(devices=devices).SerializeToString())
    for entry in before.pod_device_entries or ():
        state.claim(entry.resource_name, sorted(entry.devices))
        state.assign(entry)
    return state
