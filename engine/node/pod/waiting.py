"""The reason why a container or a pod is waiting."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.status import ContainerStateWaiting


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run, or why its pod is not admitted, as the worker last found."""

    reason: str
    message: str = ""

    def state(self) -> ContainerStateWaiting:
        return ContainerStateWaiting(reason=self.reason, message=self.message)
