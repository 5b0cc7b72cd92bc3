"""Build the context that the subsystems of a node share, with defaults for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from engine.api.config import ROOT_DIR, KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import KubengineConfiguration
from engine.host.node_context import NodeContext
from engine.host.tasks import Tasks
from engine.metrics import Registry


def node_context(
    config: KubeletConfiguration | None = None,
    *,
    name: str = "node",
    root: Path = Path(ROOT_DIR),
    clock: Callable[[], float] = time.time,
    registry: Registry | None = None,
    tasks: Tasks | None = None,
    recorder: EventRecorder | None = None,
    decisions: Decisions | None = None,
    **sections: Any,
) -> NodeContext:
    """Return a context; `sections` are those of the KubengineConfiguration by name, None for the default."""
    given = {name: section for name, section in sections.items() if section is not None}
    settings = KubengineConfiguration(**given)
    context = NodeContext.create(
        config or KubeletConfiguration(), settings, name=name, root=root, clock=clock
    )
    registry = registry or context.registry
    return replace(
        context,
        registry=registry,
        tasks=tasks or Tasks(registry),
        recorder=recorder or context.recorder,
        decisions=decisions or context.decisions,
    )


class NothingKept:
    """Stand in for a checkpoint file, and write nothing."""

    def changed(self) -> None:
        pass

    async def flush(self) -> None:
        pass
