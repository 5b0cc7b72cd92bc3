"""The reason why a container or a pod is waiting."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.status import ContainerStateWaiting


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container is not running, or its pod not taken in, as the worker last met it."""

    reason: str
    message: str = ""

    def state(self) -> ContainerStateWaiting:
        return ContainerStateWaiting(reason=self.reason, message=self.message)
