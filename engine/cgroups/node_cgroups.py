"""States what the agent needs of its node's cgroups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from msgspec.structs import replace

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod, ResourceList
from engine.api.qos import BEST_EFFORT, qos_class
from engine.api.query import expect_known, is_set
from engine.cgroups.formulas.allocatable import PID
from engine.cgroups.formulas.containers import (
    ContainerResources,
    container_resources,
    may_swap,
    overhead_resources,
    pod_swap_limit,
    sandbox_resources,
)
from engine.cgroups.formulas.conversion import UNLIMITED_QUOTA
from engine.cgroups.formulas.pod_annotations import asked, read_annotations
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.pod_cgroups import PodGroup

UpdateContainer = Callable[[str, ContainerResources], Awaitable[None]]
"""Updates a running container, given by name, with new values (CRI UpdateContainerResources)."""
ExclusiveCpus = Callable[[Pod, str | None], bool]
"""Whether a container, by its name, has CPUs of its own; with None, whether any of the pod has."""
NO_USAGE: Mapping[str, int | None] = MappingProxyType({})


def check_asked(action: str, query: Mapping[str, str]) -> bool:
    """Return whether `check`, the only action, should repair what it finds.

    Raises `InvalidInput` for any other action.
    """
    if action != "check":
        raise InvalidInput("expected check", subject=action)
    expect_known(query, ("fix",), "cgroups")
    return is_set(query, "fix", "cgroups")


class NodeCgroups(ABC):
    """Manage the cgroups of one node. All calls but `resize_pod` are synchronous, because a cgroup file
    takes microseconds.
    """

    enabled: ClassVar[bool]

    def __init__(self, settings: CgroupSettings) -> None:
        self.settings = settings
        self.has_exclusive_cpus: ExclusiveCpus = lambda pod, container: False

    def allocatable(self) -> ResourceList:
        """Return capacity minus reservations and hard eviction thresholds, without `pid`, which pods cannot
        request.
        """
        amounts = self.settings.node.allocatable()
        amounts.pop(PID, None)
        return amounts

    def container_resources(self, pod: Pod, container: Container) -> ContainerResources:
        """Return the resources of one container for the runtime."""
        values = container_resources(pod, container, self.settings.containers)
        return self._without_quota(values) if self.has_exclusive_cpus(pod, container.name) else values

    def sandbox_resources(self, pod: Pod) -> ContainerResources:
        """Return the sum of the pod's containers for the runtime."""
        values = sandbox_resources(pod, self.settings.containers)
        return self._without_quota(values) if self.has_exclusive_cpus(pod, None) else values

    def _without_quota(self, values: ContainerResources) -> ContainerResources:
        """Remove the CFS quota of containers with exclusive CPUs: it would only throttle bursts within a
        period.
        """
        return replace(values, cpu_quota=UNLIMITED_QUOTA) if values.cpu_quota else values

    def overhead_resources(self, pod: Pod) -> ContainerResources:
        """Return the pod's overhead for the runtime."""
        return overhead_resources(pod, self.settings.containers)

    def may_swap(self, pod: Pod, container: Container) -> bool:
        """Tell whether a container may swap."""
        return may_swap(pod, container, self.settings.containers)

    def swap_limit(self, pod: Pod) -> int:
        """Return the bytes that the pod may swap."""
        return pod_swap_limit(pod, self.settings.containers)

    def check_annotations(self, pod: Pod) -> None:
        """Check the annotations of a pod. Raises `InvalidInput` for an enabled one with a bad value."""
        rules = self.settings.pods
        if rules.annotations:
            read_annotations(pod, rules.annotations, rules.device_number)

    def asked_of(self, pod: Pod) -> dict[str, str]:
        """Return the enabled cgroup annotations of a pod by name, as they are written."""
        allowed = self.settings.pods.annotations
        return asked(pod, allowed) if allowed else {}

    def idles(self, pod: Pod) -> bool:
        """Tell whether the pod runs only while nobody else wants the CPU."""
        return self.settings.levels.best_effort_idle and qos_class(pod) == BEST_EFFORT

    @abstractmethod
    def set_burst(self, pod: Pod, container_id: str, quota: int) -> None:
        """Let a running container with this CPU quota save up as much of it as its pod asks; CRI has no field
        for it.

        0 changes nothing, because a quota cannot fall below the burst. Raises `Refused` with the path.
        """

    @abstractmethod
    def start(self) -> None:
        """Create the root of all pods and the QoS levels, and write their values.

        Raises `Refused` with the path for a missing cpu or memory controller, a read-only mount, a refused
        value, or reservations larger than the node.
        """

    @abstractmethod
    def stop(self) -> None:
        """Close open directories. The cgroups stay, because the pods keep running."""

    @abstractmethod
    def create_pod(self, pod: Pod) -> str:
        """Create (or adopt) the pod's cgroup before its sandbox; return `cgroup_parent` for the runtime: a
        path or a slice.

        Updates the level at once. Raises `Refused` with the path; a repeated call repairs what it can.
        """

    @abstractmethod
    async def resize_pod(
        self, old: Pod, new: Pod, update: UpdateContainer, usage: Mapping[str, int | None] = NO_USAGE
    ) -> None:
        """Resize the pod's cgroup, its containers and its level, in the order of KEP-1287.

        `usage` is memory in use by container name, in bytes, None if unknown. A memory limit below the usage
        is refused before anything changes. Raises `Refused`, also at the first failing step; a repeated call
        continues there. Containers that restart for the resize are not updated.
        """

    @abstractmethod
    def remove_pod(self, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        """Remove the pod's cgroup and everything below it from every hierarchy, after its last container.

        Remaining processes are killed first (`kill`). The removal is repeated for `wait` seconds, then
        `Refused` (EBUSY) is raised; call again later. A pod without a cgroup is fine.
        """

    @abstractmethod
    def remove_all(self, *, kill: bool = False, wait: float = 0.0) -> None:
        """Remove the root of all pods with everything below it, at the end of a development node."""

    @abstractmethod
    def kill_container(self, uid: str, container_id: str) -> int:
        """Kill what runs in a container's cgroup; return the number of processes.

        For a container that its runtime can no longer stop.
        """

    @abstractmethod
    def reconcile(self) -> int:
        """Retry refused values, rewrite wrong ones, and read a sample again; called once a minute.

        The root and the levels are part of every sample. Returns the number of repaired files.
        """

    @abstractmethod
    def has_pod(self, uid: str) -> bool:
        """Tell whether this agent created or adopted a cgroup for the pod; O(1), unlike `existing_pods`."""

    @abstractmethod
    def existing_pods(self) -> dict[str, PodGroup]:
        """Return all pod cgroups on the machine by uid, for the cleanup at start."""

    @abstractmethod
    def pod_path(self, uid: str) -> str | None:
        """Return the pod's cgroup from the root of the hierarchy (`/kubepods/…`), or None."""

    @abstractmethod
    def pod_cpu_seconds(self, uid: str) -> float:
        """Return the CPU seconds that a pod has used. Raises `Refused` if it has no cgroup."""

    @abstractmethod
    def root_path(self) -> str:
        """Return the root of all pods' cgroups, from the root of the hierarchy."""

    @abstractmethod
    def describe(self, *, pod: str = "") -> dict[str, Any]:
        """Return the node's settings and every cgroup, or those of one pod (namespace/name, name or uid)."""

    @abstractmethod
    async def act(self, action: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Run `check`, with `fix=true` to repair what it finds. Raises `InvalidInput` for anything else."""
