"""What a node writes of its own Node object, and when (kubelet v1.36, kubelet_node_status.go)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from engine.api.node import Node
from engine.api.struct import to_builtins
from engine.cluster.merge import strategic_patch

DEFAULT_LABELS = (
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
)
CONTROLLER_ATTACHES = "volumes.kubernetes.io/controller-managed-attach-detach"
_HEARTBEAT = "lastHeartbeatTime"


def registration(wanted: Node) -> dict[str, Any]:
    """The Node to create."""
    created: dict[str, Any] = to_builtins(wanted)
    created |= {"apiVersion": "v1", "kind": "Node"}
    created["metadata"].setdefault("annotations", {})[CONTROLLER_ATTACHES] = "true"
    return created


def reconciliation(known: Node, wanted: Node) -> dict[str, Any]:
    """The patch of a Node that is there already: default labels and the annotation, nothing of others."""
    labels, annotations = known.metadata.labels or {}, known.metadata.annotations or {}
    ours = wanted.metadata.labels or {}
    stale = {name: ours[name] for name in DEFAULT_LABELS if name in ours and labels.get(name) != ours[name]}
    metadata: dict[str, Any] = {"labels": stale} if stale else {}
    if annotations.get(CONTROLLER_ATTACHES) != "true":
        metadata["annotations"] = {CONTROLLER_ATTACHES: "true"}
    return {"metadata": metadata} if metadata else {}


def status_patch(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The patch from the status that the server has to the one that holds; conditions of others stay.

    Both as JSON of `Node.status`. Empty when nothing but heartbeats differs.
    """
    if _without_heartbeats(known) == _without_heartbeats(_with_others(known, wanted)):
        return {}
    return full_patch(known, wanted)


def full_patch(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """As `status_patch`, heartbeats included."""
    return {"status": strategic_patch(known, _with_others(known, wanted))}


def report_after(frequency: float, chance: random.Random) -> float:
    """Seconds until an unchanged status is reported again: `frequency` and up to half of it less or more."""
    return frequency * chance.uniform(0.5, 1.5)


def _with_others(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the node says, beside what others said: unknown fields, conditions that are not the node's, and
    extended resources that it does not name any more (they stay, at 0)."""
    ours = {condition["type"] for condition in wanted.get("conditions", ())}
    kept = [condition for condition in known.get("conditions", ()) if condition["type"] not in ours]
    merged = {**known, **wanted, "conditions": [*kept, *wanted.get("conditions", ())]}
    for field in wanted.keys() & {"capacity", "allocatable"}:
        left = {name: "0" for name in known.get(field) or {} if name not in wanted[field] and "/" in name}
        merged[field] = {**left, **wanted[field]}
    return merged


def _without_heartbeats(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [
        {name: value for name, value in condition.items() if name != _HEARTBEAT}
        for condition in status.get("conditions", ())
    ]
    return {**status, "conditions": conditions}
