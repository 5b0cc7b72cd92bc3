"""Creates what keeps decisions beyond the memory of the agent: a file of JSON lines, and a record."""

from __future__ import annotations

from engine.host.node_context import NodeContext
from engine.node.decisions.file import DecisionFile
from engine.node.decisions.recorder import NodeRecorder

Keeper = DecisionFile | NodeRecorder


def decision_keepers(context: NodeContext) -> list[Keeper]:
    """Return the keepers that the configuration asks for. Raises `InvalidInput` for limits that limit
    nothing.
    """
    kept: list[Keeper] = []
    config = context.kubengine_config
    if config.decisions.file:
        kept.append(DecisionFile(config.decisions, context.decisions, context.tasks))
    if config.record.directory:
        kept.append(
            NodeRecorder(config.record, context.decisions, context.recorder, context.tasks, context.clock)
        )
    return kept
