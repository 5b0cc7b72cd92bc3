"""Holds what every part of an agent works with: configuration, clock, tasks, metrics, events, decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.api.config import ROOT_DIR, KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import KubengineConfiguration
from engine.host.tasks import Tasks
from engine.metrics import Registry


class SteadyClock:
    """Return seconds like a Unix clock's, read once from `clock` and then advanced by `monotonic`.

    Ages and delays are differences of its readings, so that setting the wall clock neither makes every image
    old nor lets a back-off last for hours. The kubelet gets the same from Go's monotonic readings.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._offset = clock() - monotonic()

    def __call__(self) -> float:
        return self._offset + self._monotonic()


class NodeContext(msgspec.Struct, frozen=True):
    """Hold what all parts of one node work with; they pass it on whole.

    `name` is the node's, `root` the agent's directory, and `clock` returns Unix seconds: what users and the
    API read. Code that measures a duration or waits for a time reads `steady`.
    """

    config: KubeletConfiguration
    kubengine_config: KubengineConfiguration
    name: str
    root: Path
    clock: Callable[[], float]
    steady: Callable[[], float]
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
        steady: Callable[[], float] | None = None,
    ) -> NodeContext:
        """Return a context with a registry, tasks, events and decisions of its own.

        Without `steady`, a `clock` other than the system's advances steadily by itself.
        """
        registry = Registry()
        return cls(
            config=config,
            kubengine_config=kubengine_config or KubengineConfiguration(),
            name=name,
            root=root,
            clock=clock,
            steady=steady or (SteadyClock() if clock is time.time else clock),
            registry=registry,
            tasks=Tasks(registry),
            recorder=EventRecorder(clock),
            decisions=Decisions(clock),
        )
