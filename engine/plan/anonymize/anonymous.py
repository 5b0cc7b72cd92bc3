"""Replace the names in a snapshot, so that it may be given away: structure and numbers stay.

Each name gets one replacement wherever it appears, also within owners, labels and selectors, so that every
question answers as before. Names of resources, well-known label keys, and values that Kubernetes defines
stay, as decisions depend on them. The table of replacements is returned, not stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.plan.anonymize.device_objects import device_claims, device_objects
from engine.plan.anonymize.pseudonyms import Pseudonyms, replaced_taint, selecting
from engine.plan.snapshot.columns import EPHEMERAL_CLAIM, Snapshot, without_labels
from engine.plan.snapshot.inline_volumes import INLINE_VOLUME
from engine.plan.snapshot.lazy_table import whole

KEPT_PRIORITIES: Final = ("system-node-critical", "system-cluster-critical")
_HASH: Final = re.compile(r"(-[a-z0-9]{6,10})?(-[a-z0-9]{5}|-[0-9]{1,10})?$")


def anonymous(snapshot: Snapshot) -> tuple[Snapshot, dict[str, dict[str, str]]]:
    """Return the snapshot with other names, and the table: kind to name to replacement.

    Configurations of nodes are left out: their texts may hold anything. Raise `InvalidInput` for objects of
    dynamic resources that cannot be read, and `Unavailable` if their selectors cannot be evaluated.
    """
    names = Pseudonyms()
    dynamic = device_objects(names, whole(snapshot.dynamic_resources))
    nodes, pods, templates = whole(snapshot.nodes), whole(snapshot.pods), whole(snapshot.templates)
    nodes = without_labels(nodes)
    nodes = _texts(nodes, "name", lambda text: names.of("node", text))
    nodes = _texts(nodes, "document", lambda text: _node_document(names, text))
    nodes = _texts(nodes, "config", lambda text: "")
    pods = _texts(pods, "namespace", names.namespace)
    pods = _texts(pods, "owner", lambda text: _owner(names, text))
    pods = _texts(pods, "labels", lambda text: _labels(names, text))
    pods = _texts(pods, "name", lambda text: names.of("pod", text))
    pods = _texts(pods, "uid", lambda text: names.of("uid", text))
    if "claims" in pods.column_names:
        pods = _texts(pods, "claims", lambda text: _claims(names, text))
    if "device_claims" in pods.column_names:
        pods = _texts(pods, "device_claims", lambda text: device_claims(names, text))
    templates = _texts(
        templates, "spec", lambda text: encode_json(_spec(names, msgspec.json.decode(text))).decode()
    )
    images = _texts(whole(snapshot.images), "image", lambda text: names.of("image", text))
    images = _texts(images, "names", lambda text: " ".join(names.of("image", one) for one in text.split()))
    devices = _texts(whole(snapshot.devices), "pod_uid", lambda text: names.of("uid", text))
    devices = _texts(devices, "container", lambda text: names.of("container", text))
    devices = _texts(devices, "device", lambda text: names.of("device", text))
    budgets = _texts(whole(snapshot.budgets), "namespace", names.namespace)
    budgets = _texts(budgets, "name", lambda text: names.of("budget", text))
    budgets = _texts(budgets, "selector", lambda text: _selector_text(names, text))
    classes = _texts(whole(snapshot.priority_classes), "name", lambda text: _priority(names, text))
    volumes = _texts(whole(snapshot.volumes), "namespace", names.namespace)
    volumes = _texts(volumes, "claim", lambda text: names.of("claim", text))
    volumes = _texts(volumes, "volume", lambda text: names.of("volume", text))
    volumes = _texts(volumes, "node_affinity", lambda text: _selector_text(names, text))
    if "handle" in volumes.column_names:
        volumes = _texts(volumes, "handle", lambda text: names.of("handle", text))
        volumes = _texts(volumes, "driver", lambda text: names.of("driver", text))
    limits = _texts(whole(snapshot.attach_limits), "node", lambda text: names.of("node", text))
    limits = _texts(limits, "driver", lambda text: names.of("driver", text))
    meta = {
        name: value
        for name, value in snapshot.meta.items()
        if name not in ("sources", "faults", "input_hash")
    }
    made = replace(
        snapshot,
        nodes=nodes,
        pods=pods,
        templates=templates,
        images=images,
        devices=devices,
        budgets=budgets,
        priority_classes=classes,
        volumes=volumes,
        attach_limits=limits,
        dynamic_resources=dynamic,
        meta=meta | {"sources": ["anonymous"]},
    )
    return made, names.table


def _texts(table: pa.Table, name: str, change: Callable[[str], str]) -> pa.Table:
    """Return the table with each text of a column changed; missing ones stay missing."""
    column = table[name].combine_chunks()
    kind = column.type
    coded = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    fresh = pa.array([change(text) for text in coded.dictionary.to_pylist()], coded.dictionary.type)
    made = pa.DictionaryArray.from_arrays(coded.indices, fresh)
    # Two texts may become one (configurations become empty), which a dictionary must not hold twice.
    made = made.cast(fresh.type)
    array = made.dictionary_encode() if pa.types.is_dictionary(kind) else made
    return table.set_column(table.schema.get_field_index(name), name, array.cast(kind))


def _owner(names: Pseudonyms, text: str) -> str:
    kind, slash, name = text.partition("/")
    if not slash:
        return text
    if kind == "Node":
        return f"{kind}/{names.of('node', name)}"
    # The hash of a ReplicaSet stays: by it pods find their Deployment.
    ending = _HASH.search(name) if kind in ("ReplicaSet", "Job") else None
    base, tail = (name[: ending.start()], ending[0]) if ending and ending.start() else (name, "")
    return f"{kind}/{names.of('workload', base)}{tail}"


def _claims(names: Pseudonyms, text: str) -> str:
    claims = []
    for one in text.split():
        if one.startswith(INLINE_VOLUME):
            plugin, disk, *used = one.removeprefix(INLINE_VOLUME).split("/")
            parts = ",".join(names.of("handle", part) for part in disk.split(","))
            claims.append("/".join([f"{INLINE_VOLUME}{plugin}", parts, *used]))
            continue
        prefix = EPHEMERAL_CLAIM if one.startswith(EPHEMERAL_CLAIM) else ""
        claims.append(prefix + names.of("claim", one.removeprefix(prefix)))
    return " ".join(claims)


def _labels(names: Pseudonyms, text: str) -> str:
    labels = msgspec.json.decode(text or "null", type=dict[str, str] | None)
    return encode_json(names.labels(labels)).decode() if labels else text


def _priority(names: Pseudonyms, text: str) -> str:
    return text if text in KEPT_PRIORITIES else names.of("priorityclass", text)


def _node_document(names: Pseudonyms, text: str) -> str:
    if not text:
        return text
    plain = msgspec.json.decode(text)
    meta, spec = plain.get("metadata") or {}, plain.get("spec") or {}
    kept = {"name": names.of("node", meta.get("name", "")), "labels": names.labels(meta.get("labels") or {})}
    taints = [replaced_taint(names, taint) for taint in spec.get("taints") or ()]
    status = {name: plain.get("status", {}).get(name) for name in ("allocatable", "capacity")}
    fresh = {"metadata": kept, "spec": {"taints": taints} if taints else {}}
    return encode_json(fresh | {"status": {name: value for name, value in status.items() if value}}).decode()


def _spec(names: Pseudonyms, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a template's spec: only the fields that decisions read are kept."""
    fresh: dict[str, Any] = {}
    for group in ("containers", "initContainers"):
        if spec.get(group):
            fresh[group] = [_container(names, container) for container in spec[group]]
    for name in ("overhead", "resources"):
        if spec.get(name):
            fresh[name] = spec[name]
    if spec.get("nodeSelector"):
        fresh["nodeSelector"] = names.labels(spec["nodeSelector"])
    if spec.get("tolerations"):
        fresh["tolerations"] = [replaced_taint(names, one) for one in spec["tolerations"]]
    for name in ("affinity", "topologySpreadConstraints"):
        if spec.get(name):
            fresh[name] = selecting(names, spec[name])
    return fresh


def _container(names: Pseudonyms, container: Mapping[str, Any]) -> dict[str, Any]:
    fresh: dict[str, Any] = {
        "name": names.of("container", container["name"]),
        "image": names.of("image", container.get("image", "")),
    }
    for name in ("restartPolicy", "resources", "ports"):
        if container.get(name):
            fresh[name] = container[name]
    if fresh.get("resources"):
        fresh["resources"] = {name: one for name, one in container["resources"].items() if name != "claims"}
    if fresh.get("ports"):
        fresh["ports"] = [{k: v for k, v in port.items() if k != "name"} for port in container["ports"]]
    return fresh


def _selector_text(names: Pseudonyms, text: str) -> str:
    plain = msgspec.json.decode(text or "null")
    return encode_json(selecting(names, plain)).decode() if plain is not None else text
