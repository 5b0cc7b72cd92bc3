"""What a worker has in hand of its pod: the spec, where it is in its life, and what was met on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api.pod import Pod
from engine.node.pod.life import PodLife
from engine.node.pod.resize import Resize
from engine.node.pod.waiting import Waiting


@dataclass(slots=True)
class PodState:
    """`started_at` is in Unix seconds; `waiting_reason` is why it is not taken in yet. By the name of their
    container: `waiting`, why it does not run, and `restarts`, how often those had run that were taken away so
    that the pod begins anew, and `past`, how often those had run that went with the whole pod, which may come
    back."""

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
        """The pod as its source has it, which it is not yet while a resize waits."""
        return self.resize.wanted if self.resize is not None else self.pod
