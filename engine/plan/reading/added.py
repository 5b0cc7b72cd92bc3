"""Make the snapshot of a cluster with more pods that wait, or with more nodes like an existing one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.pod import Pod
from engine.api.qos import SYSTEM_CRITICAL_PRIORITY
from engine.api.struct import to_builtins
from engine.plan.reading.templates import Templates
from engine.plan.snapshot.columns import NO_NODE, TEMPLATE_CLAIM, Snapshot, without_labels
from engine.plan.snapshot.inline_volumes import inline_names
from engine.plan.snapshot.lazy_table import LongerTable, whole
from engine.plan.snapshot.results import share_results
from engine.tables import CRITICAL, HAS_PRIORITY, LIVE, ResourceNames

HOSTNAME = "kubernetes.io/hostname"
CONDITION_TAINTS = "node.kubernetes.io/"
"""Taints under this prefix follow the condition of one node, and a new node has none of them."""


@dataclass(frozen=True)
class AddedPods:
    """Ask for `count` pods alike; `owner` is their controller as `Kind/name`, empty for none."""

    pod: Pod
    count: int
    owner: str = ""


def with_pods(snapshot: Snapshot, added: Sequence[AddedPods]) -> tuple[Snapshot, list[range]]:
    """Return the snapshot with these pods on no node, and the rows of each group.

    Raise `InvalidInput` for a spec that no snapshot can hold.
    """
    templates = Templates(ResourceNames(snapshot.resources.names))
    first = snapshot.templates.num_rows
    numbers = [
        first + templates.add_pod(one.pod, encode_json(to_builtins(one.pod.spec)).decode()) for one in added
    ]
    known = whole(snapshot.templates)
    fresh = templates.table()
    joined = pa.concat_tables([known, fresh], promote_options="permissive")
    for place, name in enumerate(joined.column_names):
        if joined.column(place).null_count:
            joined = joined.set_column(place, name, joined.column(place).fill_null(0))
    qos = fresh["qos"].to_pylist()
    rows: list[dict[str, Any]] = []
    ranges = []
    start = snapshot.pods.num_rows
    for one, number in zip(added, numbers, strict=True):
        row = _row(one, number, qos[number - first])
        rows += [
            row | {"name": f"{row['name']}-{copy}" if one.count > 1 else row["name"]}
            for copy in range(one.count)
        ]
        ranges.append(range(start, start + one.count))
        start += one.count
    more = replace(snapshot, pods=LongerTable(snapshot.pods, rows), templates=joined)
    if more.resources.names == snapshot.resources.names:
        share_results(snapshot, more)
    return more, ranges


def _row(one: AddedPods, template: int, qos: int) -> dict[str, Any]:
    pod, priority = one.pod, one.pod.spec.priority
    flags = LIVE
    if priority is not None:
        flags |= HAS_PRIORITY | (CRITICAL if priority >= SYSTEM_CRITICAL_PRIORITY else 0)
    volumes = pod.spec.volumes or ()
    claims = [one.persistent_volume_claim.claim_name for one in volumes if one.persistent_volume_claim]
    claims += [name for volume in volumes for name in inline_names(to_builtins(volume))]
    return {
        "namespace": pod.metadata.namespace or "default",
        "name": pod.metadata.name,
        "uid": "",
        "node": NO_NODE,
        "template": template,
        "phase": "Pending",
        "qos": qos,
        "flags": flags,
        "priority": priority or 0,
        "created": 0.0,
        "owner": one.owner,
        "labels": encode_json(pod.metadata.labels or {}).decode(),
        "claims": " ".join(claims),
        "device_claims": " ".join(_device_claims(pod)),
    }


def _device_claims(pod: Pod) -> Iterator[str]:
    """Yield the names of a pod's ResourceClaims; one from a template is made for each pod."""
    for claim in pod.spec.resource_claims or ():
        if claim.resource_claim_name:
            yield claim.resource_claim_name
        elif claim.resource_claim_template_name:
            yield f"{TEMPLATE_CLAIM}{claim.resource_claim_template_name}"


def with_nodes(snapshot: Snapshot, like: int, count: int, taken: dict[str, int]) -> Snapshot:
    """Return the snapshot with `count` new nodes at its end, like node `like` when it was new.

    `taken` says how much of each resource daemons take, and under `pods` how many there are.
    """
    nodes = without_labels(whole(snapshot.nodes))
    new = nodes.take(pa.array(np.full(count, like)))
    names = [f"new {number + 1} like {snapshot.node_names[like]}" for number in range(count)]
    document = nodes["document"][like].as_py()
    changes: dict[str, Any] = {
        "name": names,
        "document": [_document(document, name) for name in names],
        "pods": [0] * count,
        "ready": [True] * count,
        "known": [True] * count,
        "unschedulable": [False] * count,
    }
    for name, amount in taken.items():
        column = f"allocatable/{name}"
        if column in nodes.column_names and nodes[column][like].as_py() > 0:
            changes[column] = [max(nodes[column][like].as_py() - amount, 0)] * count
    for name, values in changes.items():
        at = new.schema.get_field_index(name)
        new = new.set_column(at, name, pa.array(values, new.schema.field(at).type))
    return replace(snapshot, nodes=pa.concat_tables([nodes, new]).combine_chunks())


def _document(text: str, name: str) -> str:
    """Return the Node object of a new node from that of an existing one."""
    plain = msgspec.json.decode(text or "{}")
    meta, spec = plain.setdefault("metadata", {}), plain.setdefault("spec", {})
    meta["name"] = name
    labels = meta.get("labels") or {}
    meta["labels"] = labels | ({HOSTNAME: name} if HOSTNAME in labels else {})
    taints = [one for one in spec.get("taints") or () if not one.get("key", "").startswith(CONDITION_TAINTS)]
    spec["taints"] = taints
    return encode_json(plain).decode()
