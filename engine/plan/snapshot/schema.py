"""Validate the tables of a snapshot file before anything is computed from them.

The columns of a table are checked when the file is opened; types, nulls, ranges, order and texts of a column
when it is read. JSON texts that many rows share are decoded once. A node's `document` is decoded where it is
used (`objects`), because there is one per node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.api.node import Taint
from engine.api.scheduling import NodeSelector
from engine.plan.snapshot.columns import (
    ATTACH_LIMIT_FIELDS,
    BUDGET_FIELDS,
    DEVICE_FIELDS,
    DYNAMIC_RESOURCE_FIELDS,
    IMAGE_FIELDS,
    LABEL,
    NO_NODE,
    POD_FIELDS,
    PRIORITY_CLASS_FIELDS,
    REPEATED_TEXT,
    VOLUME_FIELDS,
    is_label_column,
)
from engine.plan.snapshot.lazy_table import Table
from engine.plan.snapshot.node_cpus import PINNING, PROCESSORS
from engine.plan.snapshot.objects import decoded_spec
from engine.tables import ResourceNames

MOST_TEXTS = 1 << 14
MAX_RESOURCES = 64
MAX_AMOUNT = 2**62
MAX_REQUEST = 2**51
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800, 253_402_300_799
"""Unix seconds of the years 1 and 9999."""
NUMA_NODES = r"^((?:[0-5]?[0-9]|6[0-3])(?:,(?:[0-5]?[0-9]|6[0-3]))*)?$"
CSI_COLUMNS = ("driver", "handle")
"""Columns of volumes that older files lack."""
BUDGET_COUNT = r"^[0-9]{1,9}%?$"

_NODE_FIELDS = {
    "name": pa.string(), "document": pa.large_string(), "known": pa.bool_(), "ready": pa.bool_(),
    "unschedulable": pa.bool_(), "images_truncated": pa.bool_(), "kubelet_version": pa.string(),
    "os": pa.string(), "arch": pa.string(), "config": pa.large_string(), "pods": pa.int64(),
}  # fmt: skip
_TEMPLATE_FIELDS = {"spec": pa.large_string(), "qos": pa.uint8(), "flags": pa.uint8()} | {
    name: pa.int64()
    for name in (
        "request/cpu", "request/memory", "request/ephemeral-storage",
        "limit/cpu", "limit/memory", "limit/ephemeral-storage",
        "fraction/memory", "fraction/ephemeral-storage",
    )
}  # fmt: skip
_OPEN_FIELDS = {"allocatable": "nodes", "capacity": "nodes", "reading": "nodes", "usage": "pods"}
_OPEN_FIELDS |= {"request": "templates", "ranking": "templates"}
"""Groups of int64 columns whose names after the slash are not fixed, and their table."""
_FIXED = {
    "nodes": _NODE_FIELDS,
    "pods": POD_FIELDS,
    "templates": _TEMPLATE_FIELDS,
    "images": IMAGE_FIELDS,
    "devices": DEVICE_FIELDS,
    "budgets": BUDGET_FIELDS,
    "priority_classes": PRIORITY_CLASS_FIELDS,
    "volumes": VOLUME_FIELDS,
    "attach_limits": ATTACH_LIMIT_FIELDS,
    "dynamic_resources": DYNAMIC_RESOURCE_FIELDS,
}
_MAY_LACK = {
    "nodes": {"ready"},
    "pods": {"deleted"},
    "images": {"last_used", "first_detected", "in_use"},
    "budgets": {"min_available", "max_unavailable"},
    "volumes": {"node_affinity"},
}
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "nodes": {"allocatable/": (-1, MAX_AMOUNT), "capacity/": (-1, MAX_AMOUNT), "reading/": (-1, MAX_AMOUNT),
              "pods": (0, 2**31)},
    "pods": {"qos": (0, 2), "created": (FIRST_MOMENT, LAST_MOMENT), "usage/": (0, MAX_AMOUNT)},
    "templates": {"qos": (0, 2), "request/": (0, MAX_REQUEST), "ranking/": (0, MAX_REQUEST),
                  "limit/": (0, 2**63 - 1), "fraction/": (0, 999_999_999)},
    "images": {"size": (0, MAX_AMOUNT), "last_used": (FIRST_MOMENT, LAST_MOMENT),
               "first_detected": (FIRST_MOMENT, LAST_MOMENT)},
    "priority_classes": {"value": (-(2**31), 2**31 - 1)},
    "attach_limits": {"limit": (0, 2**31 - 1)},
}  # fmt: skip
_TEXTS = {
    "devices": {"numa": NUMA_NODES},
    "budgets": {"min_available": BUDGET_COUNT, "max_unavailable": BUDGET_COUNT},
}
_labels = msgspec.json.Decoder(dict[str, str] | None)
_taints = msgspec.json.Decoder(list[Taint] | None)
_selector = msgspec.json.Decoder(NodeSelector | None)


class Provenance(msgspec.Struct):
    """Decode the parts of `meta` that are used later."""

    input_hash: str = ""
    version: str = ""
    placed_by: str = ""
    sources: list[str] = []
    faults: dict[str, int] = {}
    taken_at: float | None = None


class Manifest(msgspec.Struct, rename="camel"):
    format: str = ""
    format_version: int = 0
    meta: dict[str, Any] = {}


def checked_manifest(data: bytes) -> Manifest:
    """Validate the manifest. Raise `InvalidInput` with the field."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
        msgspec.convert(manifest.meta, Provenance)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"manifest.json: {error}") from None
    return manifest


def checked_names(table: str, names: Sequence[str]) -> None:
    """Raise `InvalidInput` with the first missing column of a table with these columns."""
    for field in _fields(table, names):
        if field not in names:
            raise InvalidInput(f"{table}.{field}: the column is missing")


def checked_columns(name: str, table: pa.Table, nodes: int) -> pa.Table:
    """Validate columns of a table of a snapshot with this many `nodes`, and return them with a snapshot's
    types.

    Raise `InvalidInput` with table and column.
    """
    fields = _fields(name, table.column_names)
    for field in table.column_names:
        if field not in fields:
            continue
        kind, column = fields[field], table[field]
        if column.type != kind:
            try:
                column = column.cast(kind)
            except pa.ArrowException:
                raise InvalidInput(f"{name}.{field}: expected {kind}, got {column.type}") from None
            table = table.set_column(table.column_names.index(field), field, column)
        if column.null_count and not _may_lack(name, field):
            raise InvalidInput(f"{name}.{field}: values are missing")
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidInput(f"{name}: {' '.join(str(error).split())[:200]}") from None
    for field in table.column_names:
        if field in fields:
            _check_values(name, field, table[field], nodes)
    return table


def _fields(name: str, there: Sequence[str]) -> Mapping[str, pa.DataType]:
    """Return the fields of a table that has the columns `there`."""
    fields = dict(_FIXED[name])
    for column in there:
        group, slash, _ = column.partition("/")
        if slash and _OPEN_FIELDS.get(group) == name:
            fields.setdefault(column, pa.int64())
    if name == "templates":
        names = [column.removeprefix("request/") for column in fields if column.startswith("request/")]
        fields |= {f"ranking/{resource}": pa.int64() for resource in names}
        if len(ResourceNames(names)) > MAX_RESOURCES:
            raise InvalidInput(f"templates: more than {MAX_RESOURCES} resources")
    if name == "nodes":
        fields |= {field: pa.large_string() for field in (PROCESSORS, PINNING) if field in there}
        fields |= {field: REPEATED_TEXT for field in there if is_label_column(field)}
    if name == "pods":
        fields = {field: kind for field, kind in fields.items() if field[:6] != "usage/" or field in there}
        optional = {"deleted": pa.float64(), "claims": REPEATED_TEXT, "device_claims": REPEATED_TEXT}
        fields |= {field: kind for field, kind in optional.items() if field in there}
    if name == "volumes":
        fields = {field: kind for field, kind in fields.items() if field in there or field not in CSI_COLUMNS}
    return fields


def _may_lack(name: str, field: str) -> bool:
    return field in _MAY_LACK.get(name, ()) or field.startswith(("reading/", "usage/", LABEL))


def _check_values(name: str, field: str, column: pa.ChunkedArray, nodes: int) -> None:
    group = field.partition("/")[0] + "/" if "/" in field else field
    bounds = _RANGES.get(name, {}).get(group)
    if bounds is not None:
        _check_range(f"{name}.{field}", column, *bounds)
    pattern = _TEXTS.get(name, {}).get(field)
    if pattern is not None:
        fine = pc.match_substring_regex(column, pattern.replace("$", r"\z"))
        if not pc.all(fine.fill_null(True)).as_py() and len(column):
            row = pc.index(fine, False).as_py()
            raise InvalidInput(f"{name}.{field}[{row}]: {str(column[row])[:60]!r} cannot be read")
    match (name, field):
        case ("nodes", "name"):
            _check_node_names(column)
        case ("images" | "devices", "node"):
            _check_range(f"{name}.node", column, 0, nodes - 1)
            if np.any(np.diff(column.to_numpy()) < 0):
                raise InvalidInput(f"{name}.node: not in the order of nodes")
        case ("templates", "spec"):
            _check_specs(column)
        case ("pods", "labels"):
            _check_texts("pods.labels", column, _labels, "labels")
        case ("nodes", "taints"):
            _check_texts("nodes.taints", column, _taints, "taints")
        case ("volumes", "node_affinity"):
            _check_selectors(column)


def _check_range(where: str, column: pa.ChunkedArray, low: float, high: float) -> None:
    values = column.drop_null().to_numpy()
    wrong = ~((values >= low) & (values <= high))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInput(f"{where}: expected {low:.0f} to {high:.0f}, got {values[row]}")


def _check_node_names(column: pa.ChunkedArray) -> None:
    if len(column.unique()) < len(column) or pc.index(column, "").as_py() >= 0:
        raise InvalidInput("nodes.name: empty or repeated")


def _check_specs(column: pa.ChunkedArray) -> None:
    for row, spec in enumerate(column.to_pylist()):
        try:
            decoded_spec(spec)
        except InvalidInput as error:
            raise InvalidInput(f"templates.spec[{row}]: {error.message}") from None


def _check_texts(where: str, column: pa.ChunkedArray, decoder: msgspec.json.Decoder[Any], kind: str) -> None:
    """Raise `InvalidInput` unless each distinct text of a column can be decoded; an empty one stands for
    nothing.
    """
    for chunk in column.chunks:
        # Each part of a file that we wrote has the same texts.
        known = _checked_texts.get(where)
        if known is not None and chunk.dictionary.equals(known):
            continue
        for text in chunk.dictionary.to_pylist():
            if not _can_be_decoded(decoder, text):
                raise InvalidInput(f"{where}: {text[:60]!r} are not {kind}")
        _checked_texts[where] = chunk.dictionary


_checked_texts: dict[str, pa.Array] = {}
"""The last dictionary of each column whose texts can all be decoded."""


@lru_cache(maxsize=MOST_TEXTS)
def _can_be_decoded(decoder: msgspec.json.Decoder[Any], text: str) -> bool:
    """Tell whether a text is valid; parts of a column have many texts in common."""
    try:
        decoder.decode(text or "null")
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _check_selectors(column: pa.ChunkedArray) -> None:
    for row, text in enumerate(column.to_pylist()):
        try:
            _selector.decode(text or "null")
        except msgspec.DecodeError:
            raise InvalidInput(f"volumes.node_affinity[{row}]: {text[:60]!r} selects no nodes") from None


def check_pods(pods: Table, counts: NDArray[np.int64], first: int, templates: int) -> None:
    """Validate the pods of the nodes from `first` on, of which each has as many as `counts` says, followed by
    those that count on no node.

    Raise `InvalidInput` with the column.
    """
    placed = pods.select(("node", "template"))
    node = placed["node"].to_numpy()
    expected = np.repeat(np.arange(first, first + len(counts), dtype=np.int32), counts)
    if len(expected) > len(node):
        raise InvalidInput("nodes.pods: counts more pods than the table holds")
    if not np.array_equal(node[: len(expected)], expected):
        raise InvalidInput("pods.node: does not match the counts in nodes.pods")
    _check_range("pods.node", placed["node"], NO_NODE, first + len(counts) - 1)
    _check_range("pods.template", placed["template"], 0, templates - 1)
