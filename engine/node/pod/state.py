"""Holds the state of one pod, which its worker and its sync share, and why something of a pod waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api.pod import Pod
from engine.api.status import ContainerStateWaiting
from engine.node.pod.life import PodLife
from engine.node.pod.resize import Resize


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run, or why its pod is not admitted, as the worker last found."""

    reason: str
    message: str = ""

    def state(self) -> ContainerStateWaiting:
        return ContainerStateWaiting(reason=self.reason, message=self.message)


@dataclass(slots=True)
class PodState:
    """The state of one pod; `pod.status` is the status that was published last.

    `started_at` is a Unix time; `waiting_reason` is why the pod is not admitted yet. By container name:
    `waiting` is why a container does not run, `restarts` counts the runs of containers that were removed
    because the pod starts again, and `past` counts runs of containers that were removed together with an
    earlier instance of the pod. `messages` are the termination messages by container id; `sealed` tells
    whether the published status is the pod's last one.
    """

    pod: Pod
    life: PodLife
    started_at: float
    resize: Resize | None = None
    waiting_reason: Waiting | None = None
    waiting: dict[str, Waiting] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    past: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    sealed: bool = False

    @property
    def wanted(self) -> Pod:
        """The pod as its source wants it; it differs from `pod` while a resize waits."""
        return self.resize.wanted if self.resize is not None else self.pod
