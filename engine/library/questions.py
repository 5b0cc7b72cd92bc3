"""Ask the planner's questions with parameters given as a struct or as a plain mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer
from engine.plan.cluster import Cluster, NodeSelection, question
from engine.plan.cluster import ask as _ask


def ask(
    cluster: Cluster,
    name: str,
    parameters: msgspec.Struct | Mapping[str, Any] | None = None,
    *,
    selection: NodeSelection | None = None,
    shard_pods: int = 0,
    dask: str = "",
) -> Answer:
    """Ask one question, such as "preempt", of every node of a cluster; `kubengine plan --help` lists them.

    `parameters` are the question's own, as `{"critical": True, "requests": {"cpu": "8"}}` or typed. The
    answer's `table` is an Arrow table of scenario, node, decision, object, reason, amount and unit.
    `shard_pods` bounds the number of pods in memory, `dask` is a scheduler's address. Raise `InvalidInput`
    naming the parameter.
    """
    if not isinstance(parameters, msgspec.Struct):
        kind = question(name).parameters
        try:
            parameters = msgspec.convert(dict(parameters or {}), kind)
        except msgspec.ValidationError as error:
            raise InvalidInput(str(error), subject=name) from None
    return _ask(cluster, name, parameters, selection=selection, shard_pods=shard_pods, dask=dask)
