"""Admit the pods of a node again under another allocatable, as its kubelet does when it starts with a new
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.admission.readmission import ADMITTED, Readmission
from engine.api.resources import PODS, scaled
from engine.plan.rollout.amounts import Amounts, with_allocatable
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import node_object, pod_object


@dataclass(slots=True)
class Refusals:
    """Hold the pods of one node that would no longer be admitted, by their rows in the snapshot, and the pods
    preempted for critical ones, each with the reason.
    """

    refused: dict[int, str] = field(default_factory=dict)
    victims: dict[int, str] = field(default_factory=dict)


def refusals(snapshot: Snapshot, node: int, before: Amounts | None, after: Amounts) -> Refusals:
    """Judge the pods of a node in the order of their creation, under both amounts; without `before`, all of
    them fit today.

    A pod that would not be admitted today either, or would be preempted, says nothing about the change.
    """
    found = Refusals()
    about = node_object(snapshot, node)
    now = Readmission(with_allocatable(about, before)) if before is not None else None
    coming = Readmission(with_allocatable(about, after))
    first, last = int(snapshot.offsets[node]), int(snapshot.offsets[node + 1])
    created = snapshot.column("created", slice(first, last))
    rows: dict[str, int] = {}
    for row in (first + np.argsort(created, kind="stable")).tolist():
        pod = pod_object(snapshot, row)
        was = now.judge(pod)[0] if now is not None else ADMITTED
        verdict, message = coming.judge(pod)
        if was != ADMITTED:
            continue
        rows[pod.uid] = row
        if verdict != ADMITTED:
            found.refused[row] = f"{verdict}: {message}"
    for uid in now.victims if now is not None else ():
        found.refused.pop(rows.pop(uid), None)
    for uid, preemptor in coming.victims.items():
        if uid in rows:
            found.victims[rows[uid]] = f"for the critical pod {preemptor}"
    return found


def all_fit(amounts: Amounts, pods: int, requested: Mapping[str, int]) -> bool:
    """Tell whether so many pods fit, which together request this much in scaled integers."""
    if PODS in amounts and pods > amounts[PODS].value:
        return False
    return all(
        name in amounts and requests <= scaled(name, amounts[name])
        for name, requests in requested.items()
        if requests
    )
