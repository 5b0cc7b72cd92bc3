"""Stands in on a node without cgroups (`cgroupsPerQOS: false`, or an unprivileged user).

Containers still get their values, which the runtime applies as far as it can; there are no pod cgroups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.node_cgroups import NO_USAGE, NodeCgroups, UpdateContainer, check_asked
from engine.cgroups.pod_cgroups import PodGroup
from engine.cgroups.resize import ContainerStep, resize_steps


class NoCgroups(NodeCgroups):
    """Implement `NodeCgroups` without any cgroups; `reason` is shown on status pages."""

    enabled = False

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        capacity: Mapping[str, Quantity | int],
        reason: str = "cgroupsPerQOS is false",
    ) -> None:
        super().__init__(CgroupSettings.resolve(config, capacity, cgroup_v2=False))
        self.reason = reason
        self._parent = config.cgroup_root if not config.cgroups_per_qos else ""

    def start(self) -> None:
        """Do nothing; there is nothing to create."""

    def stop(self) -> None:
        """Do nothing; there is nothing to close."""

    def create_pod(self, pod: Pod) -> str:
        return self._parent

    async def resize_pod(
        self, old: Pod, new: Pod, update: UpdateContainer, usage: Mapping[str, int | None] = NO_USAGE
    ) -> None:
        """Resize the containers only. `usage` is ignored, because the runtime limits nothing."""
        for step in resize_steps(old, new, self.settings.pods, self.settings.containers):
            if isinstance(step, ContainerStep):
                await update(step.container, step.resources)

    def set_burst(self, pod: Pod, container_id: str, quota: int) -> None:
        """Do nothing; there is nothing to write."""

    def remove_pod(self, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        """Do nothing; there is nothing to remove."""

    def remove_all(self, *, kill: bool = False, wait: float = 0.0) -> None:
        """Do nothing; there is nothing to remove."""

    def kill_container(self, uid: str, container_id: str) -> int:
        return 0

    def reconcile(self) -> int:
        return 0

    def has_pod(self, uid: str) -> bool:
        return False

    def existing_pods(self) -> dict[str, PodGroup]:
        return {}

    def pod_path(self, uid: str) -> str | None:
        return None

    def pod_cpu_seconds(self, uid: str) -> float:
        raise Refused("the agent creates no cgroups", subject=uid)

    def root_path(self) -> str:
        return self._parent

    def describe(self, *, pod: str = "") -> dict[str, Any]:
        return {"enabled": False, "reason": self.reason, "groups": []}

    async def act(self, action: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        check_asked(action, query)
        return []
