"""Build typed pods and nodes from a snapshot, for decisions that take objects rather than columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from engine.api.config import KubeletConfiguration, keep_zeros
from engine.api.documents import convert
from engine.api.documents.nearest import nearest
from engine.api.errors import InvalidInput
from engine.api.meta import ObjectMeta
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.qos import MIRROR_ANNOTATION, NODE_CRITICAL_PRIORITY, SOURCE_ANNOTATION, SYSTEM_NODE_CRITICAL
from engine.api.status import PodStatus
from engine.api.struct import decode_hook
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import value_of
from engine.tables import DO_NOT_PREEMPT_ANNOTATION, HAS_PRIORITY, MIRROR, PROTECTED, QOS_NAMES, STATIC

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})

_pod = msgspec.json.Decoder(Pod, dec_hook=decode_hook)
_node = msgspec.json.Decoder(Node, dec_hook=decode_hook)


def decoded_spec(spec: str) -> Pod:
    """Return a pod with a template's `spec` and nothing else. Raise `InvalidInput`."""
    try:
        return _pod.decode(f'{{"spec":{spec}}}')
    except (msgspec.DecodeError, InvalidInput, RecursionError) as error:
        raise InvalidInput(str(error), subject="templates.spec") from None


def template_pod(spec: str, qos: int) -> Pod:
    """Return a pod of this template and class; its name and uid are empty."""
    pod = decoded_spec(spec)
    pod.status.qos_class = QOS_NAMES[qos]
    return pod


def pod_object(snapshot: Snapshot, row: int) -> Pod:
    """Return what the snapshot knows of one pod: enough for admission, preemption, cgroups and eviction."""
    fields = {name: value_of(snapshot.pods, name, row) for name in _FIELDS}
    pod = decoded_spec(value_of(snapshot.templates, "spec", fields["template"]))
    flags = fields["flags"]
    annotations = {SOURCE_ANNOTATION: "file"} if flags & STATIC else {}
    annotations |= {MIRROR_ANNOTATION: "mirror"} if flags & MIRROR else {}
    annotations |= {DO_NOT_PREEMPT_ANNOTATION: "true"} if flags & PROTECTED else {}
    pod.metadata = ObjectMeta(
        name=fields["name"],
        namespace=fields["namespace"],
        uid=fields["uid"] or f"{fields['namespace']}/{fields['name']}",
        annotations=annotations or None,
        creation_timestamp=datetime.fromtimestamp(fields["created"], UTC) if fields["created"] else None,
    )
    if flags & HAS_PRIORITY:
        pod.spec.priority = fields["priority"]
        if fields["priority"] == NODE_CRITICAL_PRIORITY:
            pod.spec.priority_class_name = SYSTEM_NODE_CRITICAL
    pod.status = PodStatus(qos_class=QOS_NAMES[fields["qos"]], phase=fields["phase"])
    return pod


_FIELDS = ("template", "flags", "name", "namespace", "uid", "created", "priority", "qos", "phase")


_CONFIG_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(KubeletConfiguration))


def configuration_object(text: str, changes: Mapping[str, Any] = NO_CHANGES) -> KubeletConfiguration:
    """Decode a node's configuration from its JSON, ignoring fields of other versions, and merge `changes`
    over it; the default for no text. The JSON has its defaults already, so a zero in it is a zero.

    Raise `InvalidInput` with the field.
    """
    for name in changes:
        if name not in _CONFIG_FIELDS:
            near = nearest(name, _CONFIG_FIELDS)
            raise InvalidInput(f"{name}: no such field in KubeletConfiguration{near}", subject="changes")
    try:
        plain = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(str(error), subject="configuration") from None
    known = {name: value for name, value in plain.items() if name in _CONFIG_FIELDS}
    config = convert(known | dict(changes), KubeletConfiguration, "configuration")
    keep_zeros(config, {name: value for name, value in known.items() if name not in changes})
    return config


@lru_cache(maxsize=4096)
def _decoded_node(text: str) -> Node:
    try:
        return _node.decode(text)
    except (msgspec.DecodeError, InvalidInput, RecursionError) as error:
        raise InvalidInput(str(error), subject="nodes.document") from None


def node_object(snapshot: Snapshot, node: int) -> Node:
    """Return labels, taints and amounts of a node; the object is shared, so do not change it."""
    text = snapshot.nodes["document"][node].as_py()
    return _decoded_node(text) if text else Node(metadata=ObjectMeta(name=snapshot.node_names[node]))


def pods_of_node(snapshot: Snapshot, node: int) -> list[Pod]:
    """Return every pod that counts on a node, in the snapshot's order."""
    first, last = int(snapshot.offsets[node]), int(snapshot.offsets[node + 1])
    return [pod_object(snapshot, row) for row in range(first, last)]
