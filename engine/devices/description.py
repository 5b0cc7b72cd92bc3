"""Describes the device manager's state as plain values, for `kubengine devices` and debugging. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.devices.allocation import Explanation
from engine.devices.state import DeviceState

REASONS = (
    ("reused", "from an earlier init container of the pod"),
    ("aligned", "at the NUMA nodes that the topology policy chose"),
    ("preferred", "preferred by the plugin"),
    ("unaligned", "at other NUMA nodes, since those chosen had too few"),
    ("no_affinity", "lowest free id"),
)


def describe_devices(
    state: DeviceState,
    pods: Iterable[Pod],
    capacity: tuple[Mapping[str, int], Mapping[str, int], Sequence[str]],
    connected: Collection[str],
) -> dict[str, Any]:
    """Return the resources by name, each with its devices by id."""
    names = {pod.uid: pod.full_name for pod in pods}
    owners: dict[tuple[str, str], list[dict[str, str]]] = {}
    for entry in state.entries():
        owner = {
            "pod": names.get(entry.pod_uid, ""),
            "podUID": entry.pod_uid,
            "container": entry.container_name,
        }
        for device in entry.devices:
            owners.setdefault((entry.resource_name, device), []).append(owner)
    total, allocatable, _ = capacity
    return {
        "resources": [
            {
                "name": name,
                "capacity": total.get(name, 0),
                "allocatable": allocatable.get(name, 0),
                "allocated": resource.inventory.allocated_count,
                "plugin": "connected" if name in connected else "away",
                "complaint": resource.inventory.complaint,
                "devices": [
                    {
                        "id": id,
                        "health": health,
                        "numa": None if nodes is None else list(nodes),
                        "owners": owners.get((name, id), []),
                    }
                    for id, health, nodes, _ in resource.inventory.rows()
                ],
            }
            for name, resource in sorted(state.resources.items())
        ]
    }


def explain_pod(
    state: DeviceState, pods: Iterable[Pod], wanted: str, explanations: Iterable[Explanation]
) -> list[dict[str, Any]]:
    """Return why the pod `namespace/name` (or `name`, or a uid) has its devices.

    Raises `InvalidInput` if there is no such pod. Of choices made before the agent started, only the result
    is known.
    """
    uids = [p.uid for p in pods if wanted in (p.full_name, p.metadata.name, p.uid)]
    if not uids:
        raise InvalidInput(f"no pod {wanted!r} on this node")
    known = {(e.pod_uid, e.container, e.resource): e for e in explanations}
    answer = []
    for uid in uids:
        for entry in state.entries_of(uid):
            made = known.get((uid, entry.container_name, entry.resource_name))
            if made is None or set(made.selection.devices) != entry.devices:
                why = [{"reason": "allocated before the agent started", "devices": sorted(entry.devices)}]
                numa = None
            else:
                chosen = made.selection
                why = [
                    {"reason": words, "devices": list(getattr(chosen, kind))}
                    for kind, words in REASONS
                    if getattr(chosen, kind)
                ]
                numa = None if made.numa is None else list(made.numa)
            answer.append(
                {
                    "podUID": uid,
                    "container": entry.container_name,
                    "resource": entry.resource_name,
                    "devices": sorted(entry.devices),
                    "numa": numa,
                    "why": why,
                }
            )
    return answer
