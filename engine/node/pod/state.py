"""Holds the state of one pod that its worker and its helpers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api.pod import Pod
from engine.node.pod.life import PodLife
from engine.node.pod.resize import Resize
from engine.node.pod.waiting import Waiting


@dataclass(slots=True)
class PodState:
    """The shared state of one pod.

    `started_at` is a Unix time; `waiting_reason` is why the pod is not admitted yet. By container name:
    `waiting` is why a container does not run, `restarts` counts the runs of containers that were removed
    because the pod starts again, and `past` counts runs of containers that were removed together with an
    earlier instance of the pod.
    """

    pod: Pod
    life: PodLife
    started_at: float
    resize: Resize | None = None
    waiting_reason: Waiting | None = None
    waiting: dict[str, Waiting] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    past: dict[str, int] = field(default_factory=dict)

    @property
    def wanted(self) -> Pod:
        """The pod as its source wants it; it differs from `pod` while a resize waits."""
        return self.resize.wanted if self.resize is not None else self.pod
