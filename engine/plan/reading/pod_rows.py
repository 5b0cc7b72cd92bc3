"""Append pod rows of a snapshot one by one, and keep them as Arrow chunks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw
from numpy.typing import NDArray

from engine.api.encoding.json_text import encode_json
from engine.api.qos import SYSTEM_CRITICAL_PRIORITY
from engine.plan.reading.documents import (
    EMPTY,
    Annotations,
    Owner,
    PodDocument,
    PodSpecFields,
    PodStatusFields,
    PodVolume,
)
from engine.plan.reading.templates import MAX_KNOWN, Templates, Unusable
from engine.plan.snapshot.columns import EPHEMERAL_CLAIM, POD_FIELDS, REPEATED_TEXT, TEMPLATE_CLAIM
from engine.plan.snapshot.inline_volumes import inline_names
from engine.tables import CRITICAL, HAS_PRIORITY, LIVE, MIRROR, PROTECTED, QOS_CODES, STATIC

_labels = msgspec.json.Decoder(dict[str, str] | None)
_parts = msgspec.json.Decoder(dict[str, Raw] | None)
_CHUNK = 65_536
_SPEC_QOS = 255
_NO_ANNOTATIONS = Annotations()
USAGE = ("memory", "disk", "inodes", "processes")
LAYER_USAGE = ("layers", "layer_inodes")
"""The part of disk and inodes in writable layers; a snapshot has these columns if statistics report them."""


class PodRows:
    """Append pods as columns. `nodes` returns a node's row by name and creates it for a new name."""

    def __init__(self, templates: Templates, nodes: dict[str, int]) -> None:
        self._templates = templates
        self._nodes = nodes
        self._chunks: list[pa.RecordBatch] = []
        self._hashes: list[NDArray[np.int64]] = []
        self._label_texts: dict[bytes, str] = {}
        self.count = 0
        self._start()

    def _start(self) -> None:
        self._namespace: list[str] = []
        self._name: list[str] = []
        self._uid: list[str] = []
        self._node: list[int] = []
        self._template: list[int] = []
        self._phase: list[str] = []
        self._qos: list[int] = []
        self._flags: list[int] = []
        self._priority: list[int] = []
        self._created: list[float] = []
        self._owner: list[str] = []
        self._labels: list[str] = []
        self._claims: list[str] = []
        self._device_claims: list[str] = []

    def add(self, pod: PodDocument) -> None:
        """Append a pod. Raise `Unusable` with the field as subject; nothing is appended then."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        if not meta.name:
            raise Unusable("expected a name", subject="metadata.name")
        if spec is None or not spec.containers:
            raise Unusable("expected containers", subject="spec.containers")
        priority = spec.priority
        if priority is not None and not -(2**31) <= priority < 2**31:
            raise Unusable(f"{priority} is not a 32-bit integer", subject="spec.priority")
        qos = _SPEC_QOS
        if status.qos_class:
            found = QOS_CODES.get(status.qos_class)
            if found is None:
                raise Unusable(f"{status.qos_class[:40]!r} is not a QoS class", subject="status.qosClass")
            qos = found
        created, labels = _created(meta.creation_timestamp), self._label_text(bytes(meta.labels))
        owner = _controller(meta.owner_references) if meta.owner_references else ""
        if owner.startswith("DaemonSet/") and spec.node_name:
            spec.affinity = _unpinned(spec.affinity)
        template = self._templates.number(spec)
        node_name = spec.node_name
        node = -1
        if node_name:
            known = self._nodes.get(node_name)
            node = self._nodes.setdefault(node_name, len(self._nodes)) if known is None else known
        self._qos.append(qos)
        self._template.append(template)
        self._node.append(node)
        self._flags.append(_flags(priority, meta.annotations or _NO_ANNOTATIONS))
        self._priority.append(priority or 0)
        self._namespace.append(meta.namespace or "default")
        self._name.append(meta.name)
        self._uid.append(meta.uid)
        self._phase.append(status.phase or "")
        self._created.append(created)
        self._owner.append(owner)
        self._labels.append(labels)
        self._claims.append(_claims(meta.name, spec.volumes) if spec.volumes else "")
        self._device_claims.append(_device_claims(spec, status) if spec.resource_claims else "")
        if len(self._name) >= _CHUNK:
            self._flush()

    def _label_text(self, raw: bytes) -> str:
        """Return labels as text, validated once per distinct text. Raise `Unusable`."""
        found = self._label_texts.get(raw)
        if found is None:
            try:
                _labels.decode(raw or b"null")
                found = raw.decode()
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Unusable(str(error).partition(" - at ")[0], subject="metadata.labels") from None
            if len(self._label_texts) >= MAX_KNOWN:
                self._label_texts.clear()
            self._label_texts[raw] = found
        return found

    def _flush(self) -> None:
        rows = len(self._name)
        pairs = zip(self._namespace, self._name, strict=True)
        self._hashes.append(np.fromiter((hash(pair) for pair in pairs), np.int64, rows))
        arrays = {
            "namespace": pa.array(self._namespace).dictionary_encode(),
            "name": pa.array(self._name, pa.large_string()),
            "uid": pa.array(self._uid, pa.large_string()),
            "node": np.array(self._node, np.int32),
            "template": np.array(self._template, np.int32),
            "phase": pa.array(self._phase).dictionary_encode(),
            "qos": np.array(self._qos, np.uint8),
            "flags": np.array(self._flags, np.uint8),
            "priority": np.array(self._priority, np.int32),
            "created": np.array(self._created, np.float64),
            "owner": pa.array(self._owner).dictionary_encode(),
            "labels": pa.array(self._labels).dictionary_encode(),
        } | {f"usage/{name}": pa.nulls(rows, pa.int64()) for name in USAGE}
        arrays["claims"] = pa.array(self._claims).dictionary_encode()
        arrays["device_claims"] = pa.array(self._device_claims).dictionary_encode()
        self._chunks.append(pa.record_batch(arrays))
        self.count += rows
        self._start()

    def table(self, templates: pa.Table) -> tuple[pa.Table, list[str]]:
        """Return the rows without repeated pods (same namespace and name), and the names of the
        repeated ones.
        """
        self._flush()
        claims = [(name, REPEATED_TEXT) for name in ("claims", "device_claims")]
        schema = pa.schema([*POD_FIELDS.items(), *claims])
        table = pa.Table.from_batches([b.cast(schema) for b in self._chunks], schema).unify_dictionaries()
        table = table.combine_chunks()
        repeated = self._repeated(table)
        if repeated:
            keep = np.ones(table.num_rows, bool)
            keep[repeated] = False
            labels = [f"{table['namespace'][row]}/{table['name'][row]}" for row in repeated]
            table = table.filter(pa.array(keep))
        else:
            labels = []
        qos = table["qos"].to_numpy()
        qos = np.where(qos == _SPEC_QOS, templates["qos"].to_numpy()[table["template"].to_numpy()], qos)
        return table.set_column(table.schema.get_field_index("qos"), "qos", pa.array(qos)), labels

    def _repeated(self, table: pa.Table) -> list[int]:
        hashes = np.concatenate(self._hashes)
        order = np.argsort(hashes, kind="stable")
        run = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        suspects = sorted({int(order[i]) for i in run} | {int(order[i + 1]) for i in run})
        seen: set[tuple[str, str]] = set()
        repeated = []
        for row in suspects:
            key = (table["namespace"][row].as_py(), table["name"][row].as_py())
            if key in seen:
                repeated.append(row)
            seen.add(key)
        return repeated


def _unpinned(affinity: Raw) -> Raw:
    """Return the affinity of a daemon's pod without its node affinity: the controller pins each pod to its
    node, which would make a template for each node.
    """
    if not bytes(affinity):
        return affinity
    try:
        parts = _parts.decode(affinity) or {}
    except (msgspec.DecodeError, RecursionError):
        # The decoder of the whole spec names the field.
        return affinity
    parts.pop("nodeAffinity", None)
    return Raw(encode_json(parts)) if parts else EMPTY


def _created(moment: datetime | None) -> float:
    """Return Unix seconds; a time without a zone is UTC."""
    if moment is None:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _claims(pod: str, volumes: list[PodVolume]) -> str:
    """Return the names of the claims and disks that a pod mounts, separated by spaces."""
    names = []
    for volume in volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif bytes(volume.ephemeral) not in (b"", b"null"):
            names.append(f"{EPHEMERAL_CLAIM}{pod}-{volume.name}")
        else:
            names.extend(inline_names(_sources(volume)))
    return " ".join(names)


def _sources(volume: PodVolume) -> dict[str, Any]:
    """Return the disk of a volume, by the field that has it."""
    return {
        "awsElasticBlockStore": volume.aws_elastic_block_store,
        "azureDisk": volume.azure_disk,
        "cinder": volume.cinder,
        "gcePersistentDisk": volume.gce_persistent_disk,
        "iscsi": volume.iscsi,
        "portworxVolume": volume.portworx_volume,
        "rbd": volume.rbd,
    }


def _device_claims(spec: PodSpecFields, status: PodStatusFields) -> str:
    """Return the names of the ResourceClaims of a pod, separated by spaces.

    A claim from a template has its name in the status, once it exists.
    """
    made = {one.name: one.resource_claim_name for one in status.resource_claim_statuses or ()}
    names = []
    for claim in spec.resource_claims or ():
        name = claim.resource_claim_name or made.get(claim.name)
        if name:
            names.append(name)
        elif claim.resource_claim_template_name and claim.name not in made:
            names.append(f"{TEMPLATE_CLAIM}{claim.resource_claim_template_name}")
    return " ".join(names)


def _flags(priority: int | None, annotations: Annotations) -> int:
    flags = LIVE
    if priority is not None:
        flags |= HAS_PRIORITY
        if priority >= SYSTEM_CRITICAL_PRIORITY:
            flags |= CRITICAL
    if annotations is not _NO_ANNOTATIONS:
        if annotations.source != "api":
            flags |= STATIC | CRITICAL
        if annotations.mirror is not None:
            flags |= MIRROR | CRITICAL
        if annotations.do_not_preempt == "true":
            flags |= PROTECTED
    return flags


def _controller(owners: list[Owner]) -> str:
    owner = next((o for o in owners if o.controller), owners[0])
    return f"{owner.kind}/{owner.name}"
