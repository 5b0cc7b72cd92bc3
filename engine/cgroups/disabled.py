"""The manager of a node without cgroups (`cgroupsPerQOS: false`, or a user who may not use them).

Containers still get their values, which the runtime applies as far as it can; there are no pod groups.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Container, Pod, ResourceList
from engine.api.quantity import Quantity
from engine.cgroups.allocatable import PID
from engine.cgroups.checks import Finding
from engine.cgroups.containers import ContainerResources, container_resources
from engine.cgroups.manager import PodGroup
from engine.cgroups.resize import ContainerStep, resize_steps
from engine.cgroups.settings import CgroupSettings


class NoCgroups:
    """`CgroupManager`'s interface with nothing behind it. `reason` says why, for status pages."""

    enabled = False

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        section: CgroupsSection | None = None,
        capacity: Mapping[str, Quantity | int],
        reason: str = "cgroupsPerQOS is false",
    ) -> None:
        self.section = section or CgroupsSection()
        self.reason = reason
        self._parent = config.cgroup_root if not config.cgroups_per_qos else ""
        self.settings = CgroupSettings.resolve(config, capacity, cgroup_v2=False)

    def start(self) -> None:
        """Nothing to make."""

    def stop(self) -> None:
        """Nothing to close."""

    def create_pod(self, pod: Pod) -> str:
        return self._parent

    def cgroup_parent(self, pod: Pod) -> str:
        return self._parent

    def container_resources(self, pod: Pod, container: Container) -> ContainerResources:
        return container_resources(pod, container, self.settings.containers)

    def has_pod(self, uid: str) -> bool:
        return False

    def allocatable(self) -> ResourceList:
        amounts = self.settings.node.allocatable()
        amounts.pop(PID, None)
        return amounts

    async def resize_pod(
        self,
        old: Pod,
        new: Pod,
        update_container: Callable[[str, ContainerResources], Awaitable[None]],
        container_usage: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Containers only; `container_usage` protects nothing here, as the runtime limits nothing."""
        for step in resize_steps(old, new, self.settings.pods, self.settings.containers):
            if isinstance(step, ContainerStep):
                await update_container(step.container, step.resources)

    def finish_pod(self, uid: str) -> None:
        """No level follows."""

    def remove_pod(self, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        """Nothing to remove."""

    def existing_pods(self) -> dict[str, PodGroup]:
        return {}

    def pod_path(self, uid: str) -> str | None:
        return None

    def kill_container(self, uid: str, group: str) -> int:
        return 0

    def root_path(self) -> str:
        return self._parent

    def update_qos(self, active_pods: Sequence[Pod]) -> int:
        return 0

    def reconcile(self, pods: Iterable[Pod] = ()) -> int:
        return 0

    def remove_all(self, *, kill: bool = False, wait: float = 0.0) -> None:
        """Nothing to remove."""

    def snapshot(self, *, containers: bool = True) -> list[dict[str, Any]]:
        return []

    def check(self, pods: Sequence[Pod] | None = None, *, fix: bool = False) -> list[Finding]:
        return []

    async def act(self, action: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        return []

    def describe(self, **_: str) -> dict[str, Any]:
        return {"enabled": False, "reason": self.reason, "groups": []}
