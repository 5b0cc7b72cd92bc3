"""Selects which dead containers and sandboxes to remove. Pure: the runtime's list in, removals out.

The unit is a pod's container by name; within one, the oldest go first, by creation. Planned removals count
as done whether or not they succeed, so that a failing one does not cost others their place. Source: kubelet
v1.32 container GC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from engine.api.kubengine_config import ContainerGCSection

RUNNING: Final = "running"
UNKNOWN: Final = "unknown"
READY: Final = "ready"

IsRemoved = Callable[[str], bool]
"""Tells whether a pod, by uid, is gone so that what it left may be removed."""


class ContainerGCPolicy(msgspec.Struct, frozen=True):
    """Limit dead containers. `min_age` is in seconds since creation; negative numbers mean no limit."""

    min_age: float = 0.0
    max_per_pod_container: int = 1
    max_containers: int = -1

    @classmethod
    def from_section(cls, section: ContainerGCSection) -> ContainerGCPolicy:
        return cls(max(float(section.min_age), 0.0), section.max_per_pod_container, section.max_containers)


class DeadContainer(msgspec.Struct, frozen=True):
    """Hold a container as the runtime lists it; `created` in Unix seconds, `state` as in CRI, lower case."""

    id: str
    pod_uid: str
    name: str
    state: str
    created: float
    sandbox_id: str = ""
    attempt: int = 0


class DeadSandbox(msgspec.Struct, frozen=True):
    id: str
    pod_uid: str
    state: str
    created: float


class Removal(msgspec.Struct, frozen=True):
    """Hold one container to remove; `stop` because its state is unknown and it may be running."""

    container: DeadContainer
    reason: str
    stop: bool


class _Units(msgspec.Struct):
    now: float
    by_name: dict[tuple[str, str], list[DeadContainer]] = msgspec.field(default_factory=dict)
    removals: list[Removal] = msgspec.field(default_factory=list)

    def count(self) -> int:
        return sum(len(unit) for unit in self.by_name.values())

    def remove_oldest(self, unit: Sequence[DeadContainer], count: int, reason: str) -> list[DeadContainer]:
        """Remove the oldest; return what is left of `unit`. If all of it goes, the order is the reverse of
        the listing.
        """
        keep = len(unit) - count
        ordered = sorted(unit, key=lambda c: -c.created) if keep > 0 else list(unit)
        for container in reversed(ordered[keep:]):
            self.removals.append(Removal(container, reason, container.state == UNKNOWN))
        return ordered[:keep]

    def limit_each(self, limit: int, reason: str) -> None:
        for key, unit in self.by_name.items():
            if len(unit) > limit:
                self.by_name[key] = self.remove_oldest(unit, len(unit) - limit, reason)


def containers_to_remove(
    containers: Iterable[DeadContainer],
    policy: ContainerGCPolicy,
    now: float,
    *,
    sources_ready: bool,
    evict_non_deleted: bool,
    content_removed: IsRemoved,
    runtime_removed: IsRemoved,
) -> list[Removal]:
    """Return the removals in order.

    All containers of pods that are gone come first, once every pod source has reported; `evict_non_deleted`
    (eviction's cleanup) adds pods that have terminated but still exist. Then each unit is cut to
    `max_per_pod_container`, then the node to `max_containers`: first an equal share for each unit, at least
    one, then the oldest of all.
    """
    units = _Units(now)
    for container in containers:
        if container.state != RUNNING and container.created <= now - policy.min_age:
            units.by_name.setdefault((container.pod_uid, container.name), []).append(container)
    if sources_ready:
        for key in list(units.by_name):
            if content_removed(key[0]) or (evict_non_deleted and runtime_removed(key[0])):
                unit = units.by_name.pop(key)
                units.remove_oldest(unit, len(unit), "its pod is gone")
    if policy.max_per_pod_container >= 0:
        units.limit_each(policy.max_per_pod_container, "more dead copies than maxPerPodContainer")
    if 0 <= policy.max_containers < units.count():
        units.limit_each(
            max(policy.max_containers // len(units.by_name), 1), "more dead containers than maxContainers"
        )
        rest = sorted((c for unit in units.by_name.values() for c in unit), key=lambda c: -c.created)
        if len(rest) > policy.max_containers:
            units.remove_oldest(
                rest, len(rest) - policy.max_containers, "more dead containers than maxContainers"
            )
    return units.removals


def sandboxes_to_remove(
    sandboxes: Iterable[DeadSandbox],
    containers: Iterable[DeadContainer],
    *,
    evict_non_deleted: bool,
    content_removed: IsRemoved,
    runtime_removed: IsRemoved,
) -> list[DeadSandbox]:
    """Return sandboxes that are neither ready nor hold a container, oldest first.

    All of a pod that is gone; otherwise all but the pod's latest.
    """
    occupied = {container.sandbox_id for container in containers}
    by_pod: dict[str, list[DeadSandbox]] = {}
    for sandbox in sandboxes:
        by_pod.setdefault(sandbox.pod_uid, []).append(sandbox)
    removals = []
    for uid, pod_sandboxes in by_pod.items():
        gone = content_removed(uid) or (evict_non_deleted and runtime_removed(uid))
        keep = 0 if gone else 1
        ordered = sorted(pod_sandboxes, key=lambda s: -s.created) if keep else pod_sandboxes
        removals += [s for s in reversed(ordered[keep:]) if s.state != READY and s.id not in occupied]
    return removals
