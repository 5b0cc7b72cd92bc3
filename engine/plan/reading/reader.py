"""Read JSON of any origin into a snapshot: identify documents, decode the needed fields, append columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.version import engine_version
from engine.plan.claims.objects import KINDS
from engine.plan.reading.documents import (
    BudgetDocument,
    ClaimDocument,
    CSINodeDocument,
    Head,
    NodeDocument,
    PodDocument,
    PriorityClassDocument,
    StorageClassDocument,
    VolumeDocument,
)
from engine.plan.reading.dynamic_rows import DynamicRows
from engine.plan.reading.json_stream import JSONStream
from engine.plan.reading.live_node import is_live
from engine.plan.reading.node_documents import NodeDocuments
from engine.plan.reading.node_rows import NodeRows
from engine.plan.reading.pod_rows import LAYER_USAGE, USAGE, PodRows
from engine.plan.reading.sources import Digest, DocumentSource
from engine.plan.reading.templates import Templates, Unusable
from engine.plan.reading.volume_rows import VolumeRows
from engine.plan.snapshot.columns import BUDGET_FIELDS, PRIORITY_CLASS_FIELDS, Snapshot, arranged
from engine.plan.snapshot.faults import FaultLog
from engine.tables import ResourceNames

_pod = msgspec.json.Decoder(PodDocument)
_node = msgspec.json.Decoder(NodeDocument)
_head = msgspec.json.Decoder(Head)
_budget = msgspec.json.Decoder(BudgetDocument)
_priority_class = msgspec.json.Decoder(PriorityClassDocument)
_claim = msgspec.json.Decoder(ClaimDocument)
_volume = msgspec.json.Decoder(VolumeDocument)
_storage_class = msgspec.json.Decoder(StorageClassDocument)
_csi_node = msgspec.json.Decoder(CSINodeDocument)


class SnapshotReader:
    """Read sources, then return the `snapshot`. Faulty objects are left out and counted in `faults`."""

    def __init__(self, faults: FaultLog) -> None:
        self.faults = faults
        self.resources = ResourceNames()
        self._nodes = NodeRows(self.resources, faults)
        self._templates = Templates(self.resources)
        self._pods = PodRows(self._templates, self._nodes.index)
        self._node_documents = NodeDocuments(self._nodes, faults)
        self._budgets: list[BudgetDocument] = []
        self._priority_classes: list[PriorityClassDocument] = []
        self._volumes = VolumeRows()
        self._dynamic = DynamicRows()
        self._ignored = 0
        self._readers: dict[str, Callable[[bytes], None]] = {
            "Node": self._read_node,
            "PodDisruptionBudget": lambda data: self._budgets.append(_budget.decode(data)),
            "PriorityClass": lambda data: self._priority_classes.append(_priority_class.decode(data)),
            "PersistentVolumeClaim": lambda data: self._volumes.add_claim(_claim.decode(data)),
            "PersistentVolume": lambda data: self._volumes.add_volume(_volume.decode(data)),
            "StorageClass": lambda data: self._volumes.add_class(_storage_class.decode(data)),
            "CSINode": lambda data: self._volumes.add_csi_node(_csi_node.decode(data)),
        }
        self._readers |= {kind: partial(self._dynamic.add, kind) for kind in KINDS}
        self._origin = ""

    def read(self, source: DocumentSource) -> None:
        """Read everything in one stream."""
        self._origin = source.origin
        objects = JSONStream(source.stream, source.origin, self.faults)
        decode, add = _pod.decode, self._pods.add
        for number, (piece, _) in enumerate(objects):
            try:
                pod = decode(piece)
                if pod.kind == "Pod" or (not pod.kind and pod.spec is not None and pod.spec.containers):
                    add(pod)
                    continue
            except Unusable as fault:
                self.faults.add(self._origin, _named(piece, number), fault.subject, fault.message)
                continue
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            self._read_other(piece, number)

    def _read_other(self, piece: memoryview, number: int) -> None:
        """Read a document that is not a decodable pod, by its kind."""
        try:
            head = _head.decode(piece)
            if self._node_documents.add(head, piece.tobytes(), self._origin):
                return
            kind = head.kind or ("Node" if _looks_like_node(head) else "")
            if kind in self._readers:
                self._readers[kind](piece.tobytes())
            elif kind == "Pod":
                _pod.decode(piece)
                self.faults.add(self._origin, _named(piece, number), "", "cannot be read")
            else:
                self._ignored += 1
        except Unusable as fault:
            self.faults.add(self._origin, _named(piece, number), fault.subject, fault.message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text, _, path = str(error).partition(" - at `$.")
            self.faults.add(self._origin, _named(piece, number), path.rstrip("`"), text)

    def _read_node(self, data: bytes) -> None:
        self._nodes.add(_node.decode(data), self._origin)

    def snapshot(self, digest: Digest, sources: list[str]) -> Snapshot:
        """Return the tables. Raise `InvalidInput` if there is neither a node nor a pod."""
        self._node_documents.finish()
        templates = self._templates.table()
        pods, repeated = self._pods.table(templates)
        for name in repeated:
            self.faults.add(
                "", f"Pod {name}", "metadata.name", "is in the snapshot twice; the later one is ignored"
            )
        nodes = self._nodes.table()
        if not nodes.num_rows and not pods.num_rows:
            first = f": {self.faults.kept[0]}" if self.faults.kept else ""
            raise InvalidInput(f"contains no nodes and no pods{first}", subject=", ".join(sources))
        live = any(is_live(source) for source in sources)
        for name, known in zip(nodes["name"].to_pylist(), nodes["known"].to_pylist(), strict=True):
            if not known:
                self.faults.add("", f"Node {name}", "", _UNKNOWN_LIVE if live else _UNKNOWN)
        return arranged(
            nodes,
            _with_usage(pods, self._node_documents.usage),
            templates=templates,
            images=self._nodes.image_table(),
            devices=self._node_documents.device_table(),
            budgets=_budget_table(self._budgets),
            priority_classes=_priority_class_table(self._priority_classes),
            volumes=self._volumes.table(),
            attach_limits=self._volumes.limit_table(),
            dynamic_resources=self._dynamic.table(),
            meta={
                "input_hash": digest.hexdigest(),
                "sources": sources,
                "version": engine_version(),
                "taken_at": time.time(),
                "ignored": self._ignored,
                "faults": dict(self.faults.counts.most_common(100)),
            },
        )


_UNKNOWN = "pods name it, but no Node object describes it"
_UNKNOWN_LIVE = (
    "no Node object describes it, and a kubelet does not serve its own Node object: "
    "also name a file with the output of `kubectl get node -o json`"
)


def _looks_like_node(head: Head) -> bool:
    return bool(head.metadata.name) and b'"nodeInfo"' in bytes(head.status)


def _named(piece: memoryview, number: int) -> str:
    """Name an object for a fault, even if most of it does not decode."""
    try:
        head = _head.decode(piece)
        name = head.metadata.name
        namespace = head.metadata.namespace
        return f"{head.kind or 'object'} {namespace + '/' if namespace else ''}{name or number}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"object {number}"


def _with_usage(pods: pa.Table, usage: Mapping[str, tuple[int | None, ...]]) -> pa.Table:
    if not usage:
        return pods
    names = (*USAGE, *LAYER_USAGE)
    values: list[list[int | None]] = [[] for _ in names]
    nothing: tuple[int | None, ...] = (None,) * len(names)
    for namespace, name in zip(pods["namespace"].to_pylist(), pods["name"].to_pylist(), strict=True):
        for column, value in zip(values, usage.get(f"{namespace}/{name}", nothing), strict=True):
            column.append(value if value is None or 0 <= value < 2**62 else None)
    for name, column in zip(names, values, strict=True):
        at = pods.schema.get_field_index(f"usage/{name}")
        array = pa.array(column, pa.int64())
        if at >= 0:
            pods = pods.set_column(at, f"usage/{name}", array)
        elif array.null_count < len(array):
            pods = pods.append_column(f"usage/{name}", array)
    return pods


def _budget_table(budgets: list[BudgetDocument]) -> pa.Table:
    def text(value: int | str | None) -> str | None:
        return None if value is None else str(value)

    rows = [
        {
            "namespace": budget.metadata.namespace or "default",
            "name": budget.metadata.name,
            "min_available": text(budget.spec.min_available),
            "max_unavailable": text(budget.spec.max_unavailable),
            "selector": encode_json(budget.spec.selector).decode(),
        }
        for budget in budgets
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(BUDGET_FIELDS.items())))


def _priority_class_table(classes: list[PriorityClassDocument]) -> pa.Table:
    rows = [
        {
            "name": c.metadata.name,
            "value": int(np.clip(c.value, -(2**31), 2**31 - 1)),
            "preemption_policy": c.preemption_policy,
        }
        for c in classes
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(PRIORITY_CLASS_FIELDS.items())))
