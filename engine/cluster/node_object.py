"""What a node writes of its own Node object, and when (kubelet v1.36, kubelet_node_status.go)."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.node import Node, NodeStatus
from engine.api.resources import is_extended
from engine.api.struct import to_builtins
from engine.cluster.merge import strategic_patch

DEFAULT_LABELS = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
)
RECONCILED_LABELS = ("kubernetes.io/os", "kubernetes.io/arch")
"""Labels that a running agent restores when somebody changes or removes them."""
CONTROLLER_ATTACHES = "volumes.kubernetes.io/controller-managed-attach-detach"
_HEARTBEAT = "lastHeartbeatTime"


def registration(wanted: Node, *, controller_attaches: bool = True) -> dict[str, Any]:
    """The Node to create."""
    created: dict[str, Any] = to_builtins(wanted)
    created |= {"apiVersion": "v1", "kind": "Node"}
    if controller_attaches:
        created["metadata"].setdefault("annotations", {})[CONTROLLER_ATTACHES] = "true"
    return created


def reconciliation(known: Node, wanted: Node, *, controller_attaches: bool = True) -> dict[str, Any]:
    """The patch of a Node that is there already: default labels and the annotation, nothing of others."""
    labels, annotations = known.metadata.labels or {}, known.metadata.annotations or {}
    ours = wanted.metadata.labels or {}
    stale = {name: ours[name] for name in DEFAULT_LABELS if name in ours and labels.get(name) != ours[name]}
    metadata: dict[str, Any] = {"labels": stale} if stale else {}
    attaches = "true" if controller_attaches else None
    if annotations.get(CONTROLLER_ATTACHES) != attaches:
        metadata["annotations"] = {CONTROLLER_ATTACHES: attaches}
    return {"metadata": metadata} if metadata else {}


def changed_labels(known: ObjectMeta, wanted: ObjectMeta) -> dict[str, str]:
    """The OS and architecture labels that differ from the node's own, with the values to write back."""
    labels, ours = known.labels or {}, wanted.labels or {}
    return {name: ours[name] for name in RECONCILED_LABELS if name in ours and labels.get(name) != ours[name]}


def left_behind(known: Node, wanted: Node) -> set[str]:
    """The extended resources of a Node that is there already which count as gone: all of them where no plugin
    has ever been with this agent, so that the Node may be another machine's."""
    if any(map(is_extended, wanted.status.capacity or ())):
        return set()
    return {name for name in known.status.capacity or () if is_extended(name)}


def without_heartbeats(status: NodeStatus) -> NodeStatus:
    """What is worth telling at once where it differs."""
    conditions = [
        msgspec.structs.replace(condition, last_heartbeat_time=None) for condition in status.conditions or ()
    ]
    return msgspec.structs.replace(status, conditions=conditions)


def status_patch(
    known: Mapping[str, Any], wanted: Mapping[str, Any], gone: Collection[str] = ()
) -> dict[str, Any]:
    """The patch from the status that the server has to the one that holds; conditions of others stay.

    Both as JSON of `Node.status`; `gone` are resources that the node had. Empty when nothing but heartbeats
    differs.
    """
    if _said(known) == _said(_with_others(known, wanted, gone)):
        return {}
    return full_patch(known, wanted, gone)


def full_patch(
    known: Mapping[str, Any], wanted: Mapping[str, Any], gone: Collection[str] = ()
) -> dict[str, Any]:
    """As `status_patch`, heartbeats included."""
    return {"status": strategic_patch(known, _with_others(known, wanted, gone))}


def report_after(frequency: float, chance: random.Random) -> float:
    """Seconds until an unchanged status is reported again: `frequency` and up to half of it less or more."""
    return frequency * chance.uniform(0.5, 1.5)


def _with_others(
    known: Mapping[str, Any], wanted: Mapping[str, Any], gone: Collection[str]
) -> dict[str, Any]:
    """What the node says, beside what others said: unknown fields, conditions that are not the node's, and
    extended resources that somebody else gave it; those that are `gone` stay, at 0."""
    ours = {condition["type"] for condition in wanted.get("conditions", ())}
    kept = [condition for condition in known.get("conditions", ()) if condition["type"] not in ours]
    merged = {**known, **wanted, "conditions": [*kept, *wanted.get("conditions", ())]}
    if merged.get("volumesInUse") == []:
        del merged["volumesInUse"]
    capacity = {
        name: "0" if name in gone else amount
        for name, amount in (known.get("capacity") or {}).items()
        if is_extended(name)
    }
    for field in wanted.keys() & {"capacity", "allocatable"}:
        merged[field] = {**capacity, **wanted[field]}
    return merged


def _said(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [
        {name: value for name, value in condition.items() if name != _HEARTBEAT}
        for condition in status.get("conditions", ())
    ]
    return {**status, "conditions": conditions}
