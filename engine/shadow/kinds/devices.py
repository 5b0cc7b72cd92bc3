"""Compare the devices of containers: could our rules have assigned the devices that a container has?

The kubelet chooses any of several equally good devices, in random order. So a choice agrees if it has as many
devices as our rules choose of each class: devices that ordinary init containers of the pod had, and healthy
devices that no other container has. The checkpoint does not show which of them a plugin prefers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from engine.api.pod import Container, Pod
from engine.devices.checkpoint import Checkpoint
from engine.devices.inventory import Inventory
from engine.devices.selection import DeviceSelection, SelectionError, select
from engine.shadow.kinds.admission import arrival, is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import ENDED, Observation
from engine.wire import deviceplugin_v1beta1_pb2 as plugin_api

CHECKPOINT: Final = "the device checkpoint"
HEALTHY: Final = "Healthy"
REFUSED: Final = "refused"
_TOO_FEW: Final = re.compile(r"number of devices unavailable for (\S+)\. Requested: (\d{1,9}),", re.ASCII)

Key = tuple[str, str, str]
"""The uid of a pod, a container ("" for a rejected pod), and a resource."""


class DeviceComparer:
    """Compare each container and resource once, when the container first has devices or first runs without
    them.
    """

    def __init__(self) -> None:
        self._judged: dict[Key, Finding] = {}
        self._before: Mapping[Key, frozenset[str]] = {}
        self._first = True

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods that request devices of plugins."""
        checkpoint = seen.devices
        if checkpoint is None or not checkpoint.registered_devices:
            self._first = False
            yield NotJudged("devices", "node", "no device plugin has registered")
            return
        self._judged = {key: found for key, found in self._judged.items() if key[0] in seen.pods}
        held = held_devices(checkpoint)
        for pod in sorted(seen.pods.values(), key=arrival):
            if is_refused(pod):
                self._judge_refusal(pod, checkpoint.registered_devices, held)
            elif pod.status.phase not in ENDED:
                self._judge(pod, checkpoint.registered_devices, held, started=not seen.record(pod.uid).empty)
        self._first, self._before = False, held
        yield from self._judged.values()

    def _judge(
        self, pod: Pod, registered: Mapping[str, Iterable[str] | None], held: Mapping[Key, frozenset[str]], *,
        started: bool,
    ) -> None:  # fmt: skip
        """Set the findings about the containers of a pod, in their order; those after an ordinary init
        container can reuse its devices.
        """
        earlier: dict[str, set[str]] = {}
        reusable: dict[str, set[str]] = {}
        for container in pod.all_containers:
            for resource, required in _requests(container, registered).items():
                key, left = (pod.uid, container.name, resource), reusable.setdefault(resource, set())
                has, of_pod = held.get(key), earlier.setdefault(resource, set())
                if key not in self._judged and (has is not None or started):
                    subject = f"{pod.full_name}/{container.name} {resource}"
                    free = frozenset(registered[resource] or ()).difference(
                        of_pod,
                        *(ids for (uid, _, name), ids in held.items() if name == resource and uid != pod.uid),
                    )
                    self._judged[key] = (
                        NotJudged("devices", subject, "chosen before the first observation")
                        if self._first
                        else compare_choice(subject, resource, required, has or frozenset(), free, left)
                    )
                of_pod |= has or frozenset()
                if container in pod.init_containers and not container.is_sidecar:
                    left |= has or frozenset()
                else:
                    left -= has or frozenset()

    def _judge_refusal(
        self, pod: Pod, registered: Mapping[str, Iterable[str] | None], held: Mapping[Key, frozenset[str]]
    ) -> None:
        """Set the finding about a pod that the kubelet rejected because too few devices were free."""
        match = _TOO_FEW.search(pod.status.message)
        if match is None or (pod.uid, "", match[1]) in self._judged:
            return
        resource, subject = match[1], f"{pod.full_name} {match[1]}"
        # Devices may have become free since then, so those that were assigned before do not count as free.
        taken = [ids for each in (held, self._before) for key, ids in each.items() if key[2] == resource]
        free = frozenset(registered.get(resource) or ()).difference(*taken)
        try:
            _select(resource, int(match[2]), free, frozenset())
            ours, reason = "admitted", f"{len(free)} devices are free"
        except SelectionError as error:
            ours, reason = REFUSED, str(error)
        self._judged[pod.uid, "", resource] = (
            NotJudged("devices", subject, "refused before the first observation")
            if self._first
            else Comparison("devices", subject, ours, REFUSED, reason, pod.status.message)
        )


def compare_choice(
    subject: str,
    resource: str,
    required: int,
    has: AbstractSet[str],
    free: AbstractSet[str],
    reusable: AbstractSet[str],
) -> Comparison:
    """Compare the devices that a container has with a choice of `required` from reusable and free ones."""
    theirs = ", ".join(sorted(has)) or "none"
    try:
        chosen = _select(resource, required, free, reusable)
    except SelectionError as error:
        return Comparison("devices", subject, "none", theirs, str(error), CHECKPOINT)
    reused = len(chosen.reused)
    fits = len(has) == required and len(reusable & has) == reused and has - reusable <= free
    reason = f"takes {required - reused} of {len(free)} free devices"
    if reused:
        reason += f", after {reused} that init containers leave"
    ours = theirs if fits else ", ".join(sorted(chosen.devices))
    return Comparison("devices", subject, ours, theirs, reason, CHECKPOINT)


def _select(
    resource: str, required: int, free: AbstractSet[str], reusable: AbstractSet[str]
) -> DeviceSelection:
    """Choose devices as the device manager does. Raise `SelectionError` if there are too few."""
    inventory = Inventory()
    listed = [plugin_api.Device(ID=id, health=HEALTHY) for id in sorted(free)]
    inventory.update(plugin_api.ListAndWatchResponse(devices=listed).SerializeToString())
    choosing = select(inventory, resource, required, reusable=reusable)
    try:
        next(choosing)
    except StopIteration as done:
        selection: DeviceSelection = done.value
        return selection
    raise AssertionError("no plugin is asked")


def held_devices(checkpoint: Checkpoint) -> dict[Key, frozenset[str]]:
    """Map the uid of a pod, a container and a resource to the ids of the container's devices."""
    return {
        (entry.pod_uid, entry.container_name, entry.resource_name): frozenset(entry.devices)
        for entry in checkpoint.pod_device_entries or ()
    }


def _requests(container: Container, registered: Mapping[str, object]) -> dict[str, int]:
    """Return how many devices of each registered resource a container requests."""
    limits = container.limits
    return {name: limits[name].value for name in sorted(limits) if name in registered and limits[name].value}
