"""Ask the planner's questions with parameters given as a struct or as a plain mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer
from engine.plan.cluster import Cluster, NodeSelection, question
from engine.plan.cluster import ask as _ask
from engine.plan.cluster import compare as _compare


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
    typed = _typed(name, parameters)
    return _ask(cluster, name, typed, selection=selection, shard_pods=shard_pods, dask=dask)


def compare(
    a: Cluster,
    b: Cluster,
    questions: Mapping[str, msgspec.Struct | Mapping[str, Any]] | None = None,
    *,
    selection: NodeSelection | None = None,
) -> Answer:
    """Compare two snapshots of a cluster: the nodes, workloads and pods that came, went, moved and grew.

    `questions` maps questions to their parameters, as `{"drain": {"nodes": ["worker-1"]}}`: rows say how the
    answers of both differ, with the question as their scenario. Raise `InvalidInput` naming the parameter.
    """
    asked = {name: _typed(name, parameters) for name, parameters in (questions or {}).items()}
    return _compare(a, b, asked, selection=selection)


def _typed(name: str, parameters: msgspec.Struct | Mapping[str, Any] | None) -> msgspec.Struct:
    if isinstance(parameters, msgspec.Struct):
        return parameters
    try:
        found: msgspec.Struct = msgspec.convert(dict(parameters or {}), question(name).parameters)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), subject=name) from None
    return found
