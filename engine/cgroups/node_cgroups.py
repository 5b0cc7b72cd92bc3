"""What an agent asks of its node's cgroups, whether the node has any or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod, ResourceList
from engine.api.qos import BEST_EFFORT, qos_class
from engine.api.query import expect_known, is_set
from engine.cgroups.formulas.allocatable import PID
from engine.cgroups.formulas.containers import (
    ContainerResources,
    container_resources,
    overhead_resources,
    pod_swap_limit,
    sandbox_resources,
)
from engine.cgroups.formulas.pod_annotations import asked, wishes
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.pod_cgroups import PodGroup

UpdateContainer = Callable[[str, ContainerResources], Awaitable[None]]
"""Gives a running container, by its name, new values: CRI UpdateContainerResources."""
NO_USAGE: Mapping[str, int] = MappingProxyType({})


def check_asked(action: str, query: Mapping[str, str]) -> bool:
    """Whether `check`, the one thing that cgroups can be told to do, should put right what it finds.
    Raises `InvalidInput` for anything else."""
    if action != "check":
        raise InvalidInput("expected check", subject=action)
    expect_known(query, ("fix",), "cgroups")
    return is_set(query, "fix", "cgroups")


class NodeCgroups(ABC):
    """One node's cgroups. Every call is synchronous but `resize_pod`, as a cgroup file takes
    microseconds."""

    enabled: ClassVar[bool]

    def __init__(self, settings: CgroupSettings) -> None:
        self.settings = settings

    def allocatable(self) -> ResourceList:
        """What pods may request: capacity less reservations and hard eviction thresholds. `pid`, which
        pods cannot request, is left out."""
        amounts = self.settings.node.allocatable()
        amounts.pop(PID, None)
        return amounts

    def container_resources(self, pod: Pod, container: Container) -> ContainerResources:
        """What the runtime is told for one container."""
        return container_resources(pod, container, self.settings.containers)

    def sandbox_resources(self, pod: Pod) -> ContainerResources:
        """What the runtime is told of the pod's containers together."""
        return sandbox_resources(pod, self.settings.containers)

    def overhead_resources(self, pod: Pod) -> ContainerResources:
        """What the runtime is told of the pod's overhead."""
        return overhead_resources(pod, self.settings.containers)

    def swap_limit(self, pod: Pod) -> int:
        """Bytes that the pod may swap out."""
        return pod_swap_limit(pod, self.settings.containers)

    def check_annotations(self, pod: Pod) -> None:
        """Raises `InvalidInput` for one that counts for the pod's cgroups and makes no sense."""
        rules = self.settings.pods
        wishes(pod, rules.annotations, rules.device_number)

    def asked_of(self, pod: Pod) -> dict[str, str]:
        """The annotations of a pod that count for its cgroups, by name, as they are written."""
        return asked(pod, self.settings.pods.annotations)

    def idles(self, pod: Pod) -> bool:
        """Whether the pod runs while nobody else wants the CPU."""
        return self.settings.levels.best_effort_idle and qos_class(pod) == BEST_EFFORT

    @abstractmethod
    def set_burst(self, pod: Pod, container_id: str, quota: int) -> None:
        """Let a running container with this CPU quota save up as much of it as its pod asks; the runtime
        can't be told. With 0 nothing: a quota cannot go below what may be saved up. Raises `Refused` with
        the path."""

    @abstractmethod
    def start(self) -> None:
        """Make the root of all pods and the QoS levels and give them their values.

        Raises `Refused` with the path for a missing cpu or memory controller, a read-only mount, a
        refused value, or reservations larger than the node.
        """

    @abstractmethod
    def stop(self) -> None:
        """Close what is open. Groups stay, as the pods in them go on running."""

    @abstractmethod
    def create_pod(self, pod: Pod) -> str:
        """Make the pod's cgroup (or adopt it) and give it its values, before its sandbox is made; what
        the runtime is given as `cgroup_parent`: a path, or a slice's name.

        The levels follow at once. Raises `Refused` with the path; calling again repairs what can be.
        """

    @abstractmethod
    async def resize_pod(
        self, old: Pod, new: Pod, update: UpdateContainer, usage: Mapping[str, int] = NO_USAGE
    ) -> None:
        """Do an in-place resize: the pod's group, its containers and its level, in the order that
        KEP-1287 asks for.

        `usage` is memory in use by container name, in bytes. A memory limit below what is in use is
        refused before anything would be killed. Raises `Refused` at the first step that cannot be
        done; calling again goes on from there. Containers that restart for it are not updated.
        """

    @abstractmethod
    def remove_pod(self, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        """Remove the pod's cgroup from every hierarchy, with all groups below it, after its last
        container.

        Processes left in it are killed first (`kill`). It is tried again for `wait` seconds, then
        `Refused` (EBUSY) is raised; call again later. A pod without a group is fine.
        """

    @abstractmethod
    def remove_all(self, *, kill: bool = False, wait: float = 0.0) -> None:
        """Remove the root of all pods with everything below it: the end of a development node."""

    @abstractmethod
    def kill_container(self, uid: str, group: str) -> int:
        """Kill what runs in one group of a pod's (a container's id); the count of processes. For a
        container that its runtime has lost hold of."""

    @abstractmethod
    def reconcile(self) -> int:
        """Once a minute: retry refused values, write what is not as it should be, and re-read a
        sample of the groups, the root and levels always. The count of files put right."""

    @abstractmethod
    def has_pod(self, uid: str) -> bool:
        """Whether we made or adopted a group for this pod; O(1), unlike `existing_pods`."""

    @abstractmethod
    def existing_pods(self) -> dict[str, PodGroup]:
        """Pod cgroups on the machine, whoever made them, by uid: for cleaning up at start."""

    @abstractmethod
    def pod_path(self, uid: str) -> str | None:
        """The pod's cgroup from the root of the hierarchy (`/kubepods/…`), None if it has none."""

    @abstractmethod
    def root_path(self) -> str:
        """The root of all pods' cgroups, from the root of the hierarchy."""

    @abstractmethod
    def describe(self, *, pod: str = "") -> dict[str, Any]:
        """For `kubengine cgroups` and the status page: the node's settings and every group, or
        those of one pod (namespace/name, name or uid)."""

    @abstractmethod
    async def act(self, action: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """`check`, with `fix=true` to put right what it finds. Raises `InvalidInput` for anything else."""
