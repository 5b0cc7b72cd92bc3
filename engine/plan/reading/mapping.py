"""Reads nodes and pods from CSV or Parquet through a small mapping file, so that traces can be used.

The file (see `docs/plan.md`) maps fields to columns and their units:

    nodes: {file: nodes.csv, columns: {name: sn, cpu: {column: cpu_milli, unit: m}, pods: {value: 110}}}
    pods:  {file: pods.csv, columns: {name: name, memory: {column: memory_mib, unit: Mi}, created: start}}

`name`, `namespace`, `uid`, `node`, `phase`, `qos`, `priority`, `owner`, `created` and `deleted` are the
fields of pods, and `name` that of nodes; every other key is a resource, and its column holds amounts.
Amounts are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.resources import scaled
from engine.api.struct import decode_hook
from engine.api.version import engine_version
from engine.plan.reading.node_rows import READINGS
from engine.plan.reading.table_file import read_table
from engine.plan.reading.templates import Templates, Unusable, intern
from engine.plan.reading.yaml_document import YAMLDocument
from engine.plan.snapshot.columns import POD_FIELDS, Snapshot, arranged
from engine.tables import ABSENT, HAS_PRIORITY, LIVE, QOS_CODES, ResourceNames

_POD_FIELDS = ("name", "namespace", "uid", "node", "phase", "qos", "priority", "owner", "created", "deleted")
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "h": 3600.0, "d": 86400.0}


class ColumnRule(msgspec.Struct, forbid_unknown_fields=True):
    """Describe where a value comes from: a column, or one value for all rows."""

    column: Annotated[str, Meta(description="the column's name in the file")] = ""
    unit: Annotated[
        str, Meta(description="unit of an amount: a Kubernetes suffix (m, Mi, G); of a time: s, ms, h, d")
    ] = ""
    value: Annotated[
        str | int | float | None, Meta(description="one value for every row, instead of a column")
    ] = None
    map: Annotated[dict[str, str | int], Meta(description="text in the file to value; other texts stay")] = {}


class TableRule(msgspec.Struct, forbid_unknown_fields=True):
    file: Annotated[str, Meta(description="CSV or Parquet file; relative to the mapping file")]
    columns: Annotated[dict[str, str | ColumnRule], Meta(description="field or resource to column")]
    labels: Annotated[dict[str, str], Meta(description="label to column (nodes)")] = {}


class Mapping(msgspec.Struct, forbid_unknown_fields=True):
    """Describe a mapping file."""

    nodes: TableRule
    pods: TableRule
    taken_at: Annotated[
        float | None, Meta(description="the time of the snapshot; None: when most pods are running")
    ] = None


class _Table:
    """Read one file with its rules; errors name the file and the column."""

    def __init__(self, rule: TableRule, folder: Path, override: str) -> None:
        self.path = override or str(folder / rule.file)
        self.rules = {
            name: ColumnRule(column=one) if isinstance(one, str) else one
            for name, one in rule.columns.items()
        }
        self.table = read_table(self.path)
        self.rows: int = self.table.num_rows
        self.labels = rule.labels
        for name, one in [
            *self.rules.items(),
            *((f"labels.{k}", ColumnRule(v)) for k, v in rule.labels.items()),
        ]:
            if one.value is None and one.column not in self.table.column_names:
                raise InvalidInput(f"has no column {one.column!r} (for {name})", subject=self.path)

    def texts(self, name: str, default: str = "") -> list[str]:
        rule = self.rules.get(name)
        if rule is None:
            return [default] * self.rows
        if rule.value is not None:
            return [str(rule.value)] * self.rows
        values = self.table[rule.column].to_pylist()
        return [str(rule.map.get(_text(v), _text(v))) for v in values]

    def times(self, name: str) -> NDArray[np.float64]:
        rule = self.rules.get(name)
        if rule is None:
            return np.zeros(self.rows)
        factor = _TIME_UNITS.get(rule.unit or "s")
        if factor is None:
            raise InvalidInput(
                f"{name}: expected one of {', '.join(_TIME_UNITS)}, got {rule.unit!r}", subject=self.path
            )
        if rule.value is not None:
            return np.full(self.rows, float(rule.value) * factor)
        try:
            column = self.table[rule.column].cast(pa.float64())
        except pa.ArrowException:
            raise InvalidInput(f"{name}: column {rule.column!r} is not a number", subject=self.path) from None
        return np.asarray(column.to_numpy(zero_copy_only=False) * factor, np.float64)

    def resources(self) -> list[str]:
        return [name for name in self.rules if name not in _POD_FIELDS]

    def amounts(self, name: str) -> list[str]:
        """Return the amount of a resource in each row, as a quantity's text; empty if the file has none."""
        rule = self.rules[name]
        texts = self.texts(name)
        known: dict[str, str] = {}
        for text in dict.fromkeys(texts):
            if text:
                written = text.removesuffix(".0") + rule.unit
                try:
                    quantity = Quantity.parse(written)
                except InvalidInput as error:
                    raise InvalidInput(f"{name}: {error.message}", subject=self.path) from None
                if quantity.nano < 0:
                    raise InvalidInput(f"{name}: {written} is negative", subject=self.path)
                known[text] = written if quantity.nano else ""
        return [known.get(text, "") for text in texts]


def _text(value: object) -> str:
    return "" if value is None else str(value)


def load_mapped(path: Path, nodes: str = "", pods: str = "") -> tuple[Snapshot, list[str]]:
    """Load a snapshot from tables, with notes about unusual input; `nodes` and `pods` replace the mapping's
    files.

    Pods without a node column are unplaced: see `place`. Raises `InvalidInput` with file, line and field.
    """
    mapping = YAMLDocument(path).convert(Mapping)
    node_table = _Table(mapping.nodes, path.parent, nodes)
    pod_table = _Table(mapping.pods, path.parent, pods)
    resources = ResourceNames()
    for name in (*node_table.resources(), *pod_table.resources()):
        try:
            intern(resources, name)
        except Unusable as error:
            raise InvalidInput(error.message, subject=str(path)) from None
    templates = Templates(resources)
    names = node_table.texts("name")
    if len(set(names)) != len(names) or not all(names):
        raise InvalidInput("node names are empty or repeated", subject=node_table.path)
    nodes_arrow = _nodes(node_table, names, resources)
    pods_arrow, odd = _pods(pod_table, names, templates)
    template_table = templates.table()
    pods_arrow = _with_qos(pods_arrow, template_table)
    meta = {
        "version": engine_version(),
        "taken_at": mapping.taken_at if mapping.taken_at is not None else _busiest(pods_arrow),
        "sources": [node_table.path, pod_table.path],
        "mapping": str(path),
        "faults": {},
    }
    snapshot = arranged(nodes_arrow, pods_arrow, templates=template_table, meta=meta)
    snapshot.meta["input_hash"] = snapshot.content_hash()
    return snapshot, odd


def _busiest(pods: pa.Table) -> float:
    """Return the first moment at which most pods exist."""
    created, deleted = pods["created"].to_numpy(), pods["deleted"].to_numpy()
    moments = np.concatenate([created, deleted])
    change = np.concatenate([np.ones(len(created), np.int64), np.full(len(deleted), -1, np.int64)])
    order = np.lexsort((change, moments))
    return float(moments[order][np.cumsum(change[order]).argmax()]) if len(moments) else 0.0


def _nodes(table: _Table, names: list[str], resources: ResourceNames) -> pa.Table:
    rows = table.rows
    amounts = {name: table.amounts(name) for name in table.resources()}
    labels = {
        label: [_text(v) for v in table.table[column].to_pylist()] for label, column in table.labels.items()
    }
    documents = []
    for row, name in enumerate(names):
        given = {resource: texts[row] or "0" for resource, texts in amounts.items()}
        meta = {"name": name, "labels": {label: texts[row] for label, texts in labels.items()}}
        plain = {"metadata": meta, "spec": {}, "status": {"allocatable": given, "capacity": given}}
        documents.append(encode_json(plain).decode())
    columns: dict[str, Any] = {
        "name": pa.array(names, pa.string()),
        "document": pa.array(documents, pa.large_string()),
        "known": np.ones(rows, bool),
        "ready": pa.array([True] * rows, pa.bool_()),
        "unschedulable": np.zeros(rows, bool),
        "images_truncated": np.zeros(rows, bool),
    }
    columns |= {name: pa.array([""] * rows, pa.string()) for name in ("kubelet_version", "os", "arch")}
    columns["config"] = pa.array([""] * rows, pa.large_string())
    for name in (*resources.names, "pods"):
        values = np.full(rows, 2**31 if name == "pods" else ABSENT, np.int64)
        if name in amounts:
            values = np.array([scaled(name, Quantity.parse(t)) if t else 0 for t in amounts[name]], np.int64)
        columns[f"allocatable/{name}"] = columns[f"capacity/{name}"] = values
    columns |= {f"reading/{name}": pa.nulls(rows, pa.int64()) for name in READINGS}
    return pa.table(columns)


def _pods(table: _Table, node_names: list[str], templates: Templates) -> tuple[pa.Table, list[str]]:
    odd: list[str] = []
    index = {name: number for number, name in enumerate(node_names)}
    nodes = table.texts("node")
    unknown = {name for name in nodes if name and name not in index}
    if unknown:
        odd.append(f"{len(unknown)} nodes that pods name are not in the node table; their pods are unplaced")
    qos = table.texts("qos")
    wrong = sorted({text for text in qos if text and text not in QOS_CODES})
    if wrong:
        raise InvalidInput(f"qos: {wrong[0]!r} is not a QoS class; map it to one", subject=table.path)
    priority = table.texts("priority")
    try:
        priorities = np.array([int(text or 0) for text in priority], np.int32)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "priority: expected 32-bit integers; map the column's texts", subject=table.path
        ) from None
    flags = np.where([bool(text) for text in priority], LIVE | HAS_PRIORITY, LIVE).astype(np.uint8)
    names = table.texts("name")
    namespaces = table.texts("namespace", "default")
    created, deleted = table.times("created"), table.times("deleted")
    if "deleted" not in table.rules:
        deleted[:] = np.inf
    columns = {
        "namespace": pa.array(namespaces).dictionary_encode(),
        "name": pa.array(names, pa.large_string()),
        "uid": pa.array(table.texts("uid"), pa.large_string()),
        "node": np.array([index.get(name, -1) for name in nodes], np.int32),
        "template": _template_numbers(table, templates),
        "phase": pa.array(table.texts("phase")).dictionary_encode(),
        "qos": np.array([QOS_CODES.get(text, 255) for text in qos], np.uint8),
        "flags": flags,
        "priority": priorities,
        "created": np.nan_to_num(created),
        "owner": pa.array(table.texts("owner")).dictionary_encode(),
        "labels": pa.array([""] * table.rows).dictionary_encode(),
    } | {name: pa.nulls(table.rows, pa.int64()) for name in POD_FIELDS if name.startswith("usage/")}
    arrow = pa.table(columns, pa.schema(list(POD_FIELDS.items())))
    return arrow.append_column("deleted", pa.array(np.where(np.isnan(deleted), np.inf, deleted))), odd


def _template_numbers(table: _Table, templates: Templates) -> NDArray[np.int32]:
    resources = table.resources()
    rows = zip(*(table.amounts(name) for name in resources), strict=True) if resources else ((),) * table.rows
    known: dict[tuple[str, ...], int] = {}
    numbers = np.empty(table.rows, np.int32)
    for position, row in enumerate(rows):
        number = known.get(row)
        if number is None:
            number = known[row] = _template(templates, dict(zip(resources, row, strict=True)), table.path)
        numbers[position] = number
    return numbers


def _template(templates: Templates, amounts: dict[str, str], path: str) -> int:
    requests = {name: text for name, text in amounts.items() if text}
    spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
    text = encode_json(spec)
    pod = msgspec.json.decode(b'{"spec":' + text + b"}", type=Pod, dec_hook=decode_hook)
    try:
        return templates.add_pod(pod, text.decode())
    except Unusable as error:
        raise InvalidInput(f"{error.subject}: {error.message}", subject=path) from None


def _with_qos(pods: pa.Table, templates: pa.Table) -> pa.Table:
    qos = pods["qos"].to_numpy()
    qos = np.where(qos == 255, templates["qos"].to_numpy()[pods["template"].to_numpy()], qos)
    return pods.set_column(pods.schema.get_field_index("qos"), "qos", pa.array(qos))
