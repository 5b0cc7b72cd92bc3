"""Creates what keeps decisions beyond the memory of the agent: a file of JSON lines, and a record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from engine.host.node_context import NodeContext
from engine.node.decisions.file import DecisionFile
from engine.node.decisions.recorder import NodeRecorder

if TYPE_CHECKING:
    from engine.node.stats.used import NodeUsage

Keeper = DecisionFile | NodeRecorder


def decision_keepers(context: NodeContext, usage: Callable[[], Awaitable[NodeUsage]]) -> list[Keeper]:
    """Return the keepers that the configuration asks for; `usage` returns what pods use. Raises
    `InvalidInput` for limits that limit nothing.
    """
    kept: list[Keeper] = []
    config = context.kubengine_config
    if config.decisions.file:
        kept.append(DecisionFile(config.decisions, context.decisions, context.tasks))
    if config.record.directory:
        kept.append(NodeRecorder(context, usage))
    return kept
