"""Holds what every part of an agent works with: configuration, clock, tasks, metrics, events, decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.api.config import ROOT_DIR, KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import KubengineConfiguration
from engine.host.tasks import Tasks
from engine.metrics import Registry


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The surroundings of all parts of one node, which pass it on whole.

    `name` is the node's, `root` the agent's directory, and `clock` returns Unix seconds.
    """

    config: KubeletConfiguration
    kubengine_config: KubengineConfiguration
    name: str
    root: Path
    clock: Callable[[], float]
    registry: Registry
    tasks: Tasks
    recorder: EventRecorder
    decisions: Decisions

    @classmethod
    def create(
        cls,
        config: KubeletConfiguration,
        kubengine_config: KubengineConfiguration | None = None,
        *,
        name: str = "",
        root: Path = Path(ROOT_DIR),
        clock: Callable[[], float] = time.time,
    ) -> NodeContext:
        """Return a context with a registry, tasks, events and decisions of its own."""
        registry = Registry()
        return cls(
            config=config,
            kubengine_config=kubengine_config or KubengineConfiguration(),
            name=name,
            root=root,
            clock=clock,
            registry=registry,
            tasks=Tasks(registry),
            recorder=EventRecorder(clock),
            decisions=Decisions(clock),
        )
