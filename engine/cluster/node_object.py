"""Computes the node's updates of its Node object, and when to send them (kubelet v1.36,
kubelet_node_status.go).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.node import PROVIDED_IP, Node, NodeStatus
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
"""Labels that a running agent restores when another client changes or removes them."""
CONTROLLER_ATTACHES = "volumes.kubernetes.io/controller-managed-attach-detach"
_HEARTBEAT = "lastHeartbeatTime"


def registration(wanted: Node, *, controller_attaches: bool = True) -> dict[str, Any]:
    """Return the Node to create."""
    created: dict[str, Any] = to_builtins(wanted)
    created |= {"apiVersion": "v1", "kind": "Node"}
    if controller_attaches:
        created["metadata"].setdefault("annotations", {})[CONTROLLER_ATTACHES] = "true"
    return created


def reconciliation(known: Node, wanted: Node, *, controller_attaches: bool = True) -> dict[str, Any]:
    """Return the patch of an existing Node: default labels and the annotation. Other fields stay."""
    labels, annotations = known.metadata.labels or {}, known.metadata.annotations or {}
    ours = wanted.metadata.labels or {}
    stale = {name: ours[name] for name in DEFAULT_LABELS if name in ours and labels.get(name) != ours[name]}
    metadata: dict[str, Any] = {"labels": stale} if stale else {}
    attaches = "true" if controller_attaches else None
    if annotations.get(CONTROLLER_ATTACHES) != attaches:
        metadata["annotations"] = {CONTROLLER_ATTACHES: attaches}
    return {"metadata": metadata} if metadata else {}


def metadata_patch(known: ObjectMeta, wanted: ObjectMeta) -> dict[str, Any]:
    """Return the patch with which a running agent restores the Node's metadata: OS and architecture labels,
    and the annotation with provided addresses for a cloud controller, which is removed if there are none.
    """
    labels, ours = known.labels or {}, wanted.labels or {}
    changed = {
        name: ours[name] for name in RECONCILED_LABELS if name in ours and labels.get(name) != ours[name]
    }
    patch: dict[str, Any] = {"labels": changed} if changed else {}
    provided = (wanted.annotations or {}).get(PROVIDED_IP)
    if (known.annotations or {}).get(PROVIDED_IP) != provided:
        patch["annotations"] = {PROVIDED_IP: provided}
    return patch


def former_resources(known: Node, wanted: Node) -> set[str]:
    """Return the extended resources of an existing Node that count as gone.

    These are all of them if no plugin has ever been registered with this agent, since the Node may describe
    another machine.
    """
    if any(map(is_extended, wanted.status.capacity or ())):
        return set()
    return {name for name in known.status.capacity or () if is_extended(name)}


def without_heartbeats(status: NodeStatus) -> NodeStatus:
    """Return the status without heartbeat times; changes of the rest must be reported at once."""
    conditions = [
        msgspec.structs.replace(condition, last_heartbeat_time=None) for condition in status.conditions or ()
    ]
    return msgspec.structs.replace(status, conditions=conditions)


def status_patch(
    known: Mapping[str, Any], wanted: Mapping[str, Any], gone: Collection[str] = ()
) -> dict[str, Any]:
    """Return the patch from the server's status to the actual one; conditions of others stay.

    Both are the JSON of `Node.status`; `gone` are former resources of the node. Empty if only heartbeats
    differ.
    """
    if _ignoring_heartbeats(known) == _ignoring_heartbeats(_with_others(known, wanted, gone)):
        return {}
    return full_patch(known, wanted, gone)


def full_patch(
    known: Mapping[str, Any], wanted: Mapping[str, Any], gone: Collection[str] = ()
) -> dict[str, Any]:
    """Return the patch of `status_patch`, with heartbeat times even if nothing else differs."""
    return {"status": strategic_patch(known, _with_others(known, wanted, gone))}


def report_after(frequency: float, chance: random.Random) -> float:
    """Return the seconds until an unchanged status is reported again: `frequency` plus or minus up to half of
    it.
    """
    return frequency * chance.uniform(0.5, 1.5)


def _with_others(
    known: Mapping[str, Any], wanted: Mapping[str, Any], gone: Collection[str]
) -> dict[str, Any]:
    """Merge the node's status with parts that other clients own.

    These are unknown fields, conditions that are not the node's, and extended resources that another client
    added. Resources that are `gone` stay with amount 0.
    """
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


def _ignoring_heartbeats(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [
        {name: value for name, value in condition.items() if name != _HEARTBEAT}
        for condition in status.get("conditions", ())
    ]
    return {**status, "conditions": conditions}
