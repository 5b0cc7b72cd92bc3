"""A cluster as columns: nodes, pods sorted by node, templates, images, devices, budgets.

`Snapshot` holds Arrow tables (documented in `docs/snapshot-format.md`) and gives the NumPy views and the
`engine.tables.ClusterTables` that kernels read. It never changes; steps such as `place` make a new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.plan.snapshot.lazy_table import LazyTable, Table, read_ahead, texts_of, value_of, whole
from engine.tables import ABSENT, ClusterTables, PodColumns, ResourceNames

TERMINAL = ("Succeeded", "Failed")
NO_NODE = -1
TEMPLATE_CLAIM = "template/"
"""Precedes the name of a ResourceClaimTemplate in `pods.device_claims`; its claim is yet to be made."""
EPHEMERAL_CLAIM = "ephemeral/"
"""Precedes the name of a claim in `pods.claims` that comes and goes with the pod."""

LABEL, TAINTS = "label/", "taints"
"""The columns of nodes in which a file has the value of each label key, and the taints as JSON."""
REPEATED_TEXT = pa.dictionary(pa.int32(), pa.string())
POD_FIELDS = {
    "namespace": REPEATED_TEXT,
    "name": pa.large_string(),
    "uid": pa.large_string(),
    "node": pa.int32(),
    "template": pa.int32(),
    "phase": REPEATED_TEXT,
    "qos": pa.uint8(),
    "flags": pa.uint8(),
    "priority": pa.int32(),
    "created": pa.float64(),
    "owner": REPEATED_TEXT,
    "labels": REPEATED_TEXT,
    "usage/memory": pa.int64(),
    "usage/disk": pa.int64(),
    "usage/inodes": pa.int64(),
    "usage/processes": pa.int64(),
}
IMAGE_FIELDS = {
    "node": pa.int32(),
    "image": REPEATED_TEXT,
    "names": REPEATED_TEXT,
    "size": pa.int64(),
    "last_used": pa.float64(),
    "first_detected": pa.float64(),
    "pinned": pa.bool_(),
    "in_use": pa.bool_(),
    "source": REPEATED_TEXT,
}
DEVICE_FIELDS = {
    "node": pa.int32(),
    "resource": REPEATED_TEXT,
    "device": pa.large_string(),
    "numa": pa.large_string(),
    "healthy": pa.bool_(),
    "pod_uid": pa.large_string(),
    "container": pa.large_string(),
}
BUDGET_FIELDS = {
    "namespace": pa.string(),
    "name": pa.string(),
    "min_available": pa.string(),
    "max_unavailable": pa.string(),
    "selector": pa.string(),
}
VOLUME_FIELDS = {
    "namespace": pa.string(),
    "claim": pa.string(),
    "volume": pa.string(),
    "node_affinity": pa.string(),
    "driver": pa.string(),
    "handle": pa.string(),
}
ATTACH_LIMIT_FIELDS = {"node": pa.string(), "driver": pa.string(), "limit": pa.int64()}
DYNAMIC_RESOURCE_FIELDS = {
    "kind": pa.string(),
    "namespace": pa.string(),
    "name": pa.string(),
    "document": pa.large_string(),
}
PRIORITY_CLASS_FIELDS = {"name": pa.string(), "value": pa.int64(), "preemption_policy": pa.string()}

_TABLE_COLUMNS = ("template", "qos", "flags", "priority", "created")
"""Pod columns from which `Snapshot.tables` is computed."""


def is_label_column(name: str) -> bool:
    """Tell whether a column of nodes has labels or taints, which a file has from the Node objects."""
    return name == TAINTS or name.startswith(LABEL)


def without_labels(nodes: pa.Table) -> pa.Table:
    """Return a table of nodes, whose Node objects are about to change, without the columns made from them."""
    return nodes.select([name for name in nodes.column_names if not is_label_column(name)])


def empty(fields: dict[str, pa.DataType]) -> pa.Table:
    return pa.schema(list(fields.items())).empty_table()


@dataclass(frozen=True)
class Snapshot:
    """Hold one cluster, or some of its nodes.

    nodes      one row per node: `name`, `document` (labels, taints, amounts as JSON), `allocatable/R` and
               `capacity/R` (int64, -1 absent), readings and configuration where known
    pods       one row per pod; those that count on a node first, sorted by node, `offsets` says where
    templates  containers and sums that pods share; `pods.template` is the row
    meta       provenance: input hash, versions, seed, faults counted

    Tables of a file, and of some of the nodes, make a column when it is first asked for (`lazy_table`).
    """

    nodes: Table
    pods: Table
    templates: Table
    images: Table = field(default_factory=lambda: empty(IMAGE_FIELDS))
    devices: Table = field(default_factory=lambda: empty(DEVICE_FIELDS))
    budgets: Table = field(default_factory=lambda: empty(BUDGET_FIELDS))
    priority_classes: Table = field(default_factory=lambda: empty(PRIORITY_CLASS_FIELDS))
    volumes: Table = field(default_factory=lambda: empty(VOLUME_FIELDS))
    attach_limits: Table = field(default_factory=lambda: empty(ATTACH_LIMIT_FIELDS))
    dynamic_resources: Table = field(default_factory=lambda: empty(DYNAMIC_RESOURCE_FIELDS))
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def node_count(self) -> int:
        return int(self.nodes.num_rows)

    @cached_property
    def node_names(self) -> list[str]:
        names: list[str] = self.nodes["name"].to_pylist()
        return names

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return int64[nodes + 1]: pods of node i are rows `offsets[i]` to `offsets[i + 1]`."""
        counts = self.nodes["pods"].to_numpy()
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    @property
    def placed(self) -> int:
        """Return the number of pods that count on a node; the rows after them are pending or have ended."""
        return int(self.offsets[-1])

    @cached_property
    def resources(self) -> ResourceNames:
        names = [
            name.removeprefix("request/") for name in self.templates.column_names if name[:8] == "request/"
        ]
        return ResourceNames(names)

    def column(self, name: str, rows: slice | None = None) -> NDArray[Any]:
        """Return a pod column as NumPy, of the placed pods or of `rows`."""
        rows = rows if rows is not None else slice(0, self.placed)
        chunk: NDArray[Any] = self.pods[name].slice(rows.start, rows.stop - rows.start).to_numpy()
        return chunk

    def usage(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return int64[placed] of a `usage/…` column, 0 if it is not known, and uint8[placed]:
        whether it is.
        """
        if f"usage/{name}" not in self.pods.column_names:
            return np.zeros(self.placed, np.int64), np.zeros(self.placed, np.uint8)
        column = self.pods[f"usage/{name}"].slice(0, self.placed)
        return column.fill_null(0).to_numpy(), column.is_valid().to_numpy().astype(np.uint8)

    def per_pod(self, name: str, rows: slice | None = None) -> NDArray[np.int64]:
        """Expand a template column to pods, for the placed ones or `rows`."""
        spread: NDArray[np.int64] = self.templates[name].to_numpy()[self.column("template", rows)]
        return spread

    def _per_pods(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return int64[names, placed]: template columns expanded to the placed pods."""
        # NumPy would convert other indices for each name.
        template = self.column("template").astype(np.intp)
        spread = np.empty((len(names), len(template)), np.int64)
        for row, name in zip(spread, names, strict=True):
            self.templates[name].to_numpy().take(template, out=row, mode="clip")
        return spread

    def allocatable(self, resource: str, of: str = "allocatable") -> NDArray[np.int64]:
        """Return int64[nodes]: milli-CPU or base units; -1 if the node does not name it."""
        name = f"{of}/{resource}"
        if name not in self.nodes.column_names:
            return np.full(self.node_count, ABSENT, np.int64)
        values: NDArray[np.int64] = self.nodes[name].to_numpy()
        return values

    def texts(self, name: str) -> list[str]:
        """Return a text column of the nodes that a snapshot may lack; empty texts then."""
        if name not in self.nodes.column_names:
            return [""] * self.node_count
        texts: list[str] = self.nodes[name].to_pylist()
        return texts

    def reading(self, *names: str) -> NDArray[np.int64]:
        """Return int64[nodes]: a reading, the first of `names` that a node has; -1 if it has none."""
        found = np.full(self.node_count, -1, np.int64)
        for name in names:
            if f"reading/{name}" in self.nodes.column_names:
                values = self.nodes[f"reading/{name}"].fill_null(-1).to_numpy()
                found = np.where(found < 0, values, found)
        return found

    def limits(self) -> NDArray[np.int64]:
        """Return int64[3, placed]: the pods' limits of CPU, memory and ephemeral storage, as in `PodColumns`.

        `tables` leaves them out, because only cgroup values depend on them.
        """
        return self._per_pods([f"limit/{name}" for name in ("cpu", "memory", "ephemeral-storage")])

    @cached_property
    def tables(self) -> ClusterTables:
        """Return the placed pods as kernels read them, with limits of zero."""
        names = self.resources.names
        self.pods.select(_TABLE_COLUMNS)
        requests = self._per_pods([f"request/{name}" for name in names])
        same = all(self.templates[f"request/{n}"].equals(self.templates[f"ranking/{n}"]) for n in names)
        ranking = requests if same else self._per_pods([f"ranking/{name}" for name in names])
        flags = self.column("flags") | self.templates["flags"].to_numpy()[self.column("template")]
        allocatable = np.stack([self.allocatable(name) for name in names])
        allocatable[:3] = np.maximum(allocatable[:3], 0)
        tables = ClusterTables.from_arrays(
            node_names=self.node_names,
            allocatable=allocatable,
            pod_limit=np.maximum(self.allocatable("pods"), 0),
            offsets=self.offsets,
            requests=requests,
            resources=self.resources,
            ranking=ranking,
            qos=self.column("qos"),
            priority=self.column("priority"),
            flags=flags.astype(np.uint8),
            creation=self.column("created"),
        )
        self._add_fractions(tables.columns)
        return tables

    def _add_fractions(self, columns: PodColumns) -> None:
        parts = [self.templates[f"fraction/{name}"].to_numpy() for name in ("memory", "ephemeral-storage")]
        fractional = (parts[0] != 0) | (parts[1] != 0)
        if fractional.any():
            template = self.column("template")
            for row in np.flatnonzero(fractional[template]).tolist():
                columns.fractions[row] = (int(parts[0][template[row]]), int(parts[1][template[row]]))

    def shard(self, first: int, last: int) -> Snapshot:
        """Return nodes `first` to `last` (excluded) and their pods, as a separate snapshot."""
        return self.shard_of(first, last, 0)

    def shard_of(self, first: int, last: int, skipped: int) -> Snapshot:
        """Return the same as `shard` if `pods` lacks the first `skipped` rows already."""
        begin, end = int(self.offsets[first]) - skipped, int(self.offsets[last]) - skipped
        images, devices = (_of_nodes(table, first, last) for table in (self.images, self.devices))
        return replace(
            self,
            nodes=_rows(self.nodes, lambda: (first, last)),
            pods=_rows(self.pods, lambda: (begin, end), first),
            images=images,
            devices=devices,
        )

    def select(self, indices: NDArray[np.int64]) -> Snapshot:
        """Return some nodes, in the order of the snapshot."""
        keep = np.zeros(self.node_count, bool)
        keep[indices] = True
        number = np.cumsum(keep) - 1
        nodes = whole(self.nodes).filter(pa.array(keep))
        placed = whole(self.pods).slice(0, self.placed)
        pods, images, devices = (
            _renumber(table, keep, number) for table in (placed, whole(self.images), whole(self.devices))
        )
        return replace(self, nodes=nodes, pods=pods, images=images, devices=devices)

    def pod_label(self, row: int) -> str:
        """Return `namespace/name`."""
        namespace, name = (value_of(self.pods, column, row) for column in ("namespace", "name"))
        return f"{namespace}/{name}"

    def pod_labels(self, rows: NDArray[np.int64]) -> pa.Array:
        """Return `namespace/name` of many rows, as an Arrow string array."""
        namespace, name = (texts_of(self.pods, column, rows) for column in ("namespace", "name"))
        return pc.binary_join_element_wise(namespace, name, pa.scalar("/", pa.large_string()))

    def content_hash(self) -> str:
        """Return a digest of the tables' content, for provenance if no input file was hashed."""
        digest = hashlib.blake2b(digest_size=16)
        for table in (self.nodes, self.pods, self.templates):
            for column in whole(table).columns:
                for chunk in column.chunks:
                    for buffer in chunk.buffers():
                        digest.update(buffer or b"")
        return digest.hexdigest()


def _of_nodes(table: Table, first: int, last: int) -> LazyTable:
    """Return the rows of a table sorted by node."""

    @cache
    def extent() -> tuple[int, int]:
        begin, end = np.searchsorted(table["node"].to_numpy(), [first, last]).tolist()
        return begin, end

    return _rows(table, extent, first)


def _rows(table: Table, extent: Callable[[], tuple[int, int]], first_node: int = 0) -> LazyTable:
    """Return a range of rows, in which a column `node` begins to count at `first_node`."""

    def columns(names: Sequence[str]) -> pa.Table:
        begin, end = extent()
        taken = table.select(names).slice(begin, end - begin)
        return _shift_nodes(taken, first_node) if "node" in names else taken

    def rows() -> int:
        begin, end = extent()
        return end - begin

    def texts(name: str, rows: NDArray[np.int64]) -> pa.Array:
        return texts_of(table, name, rows + extent()[0])

    def ahead(name: str) -> None:
        read_ahead(table, name)

    return LazyTable(table.column_names, columns, rows, texts=texts, ahead=ahead)


def _shift_nodes(table: pa.Table, first: int) -> pa.Table:
    at = table.schema.get_field_index("node")
    return table.set_column(at, "node", pc.subtract(table["node"], pa.scalar(first, pa.int32())))


def _renumber(table: pa.Table, keep: NDArray[np.bool_], number: NDArray[np.int64]) -> pa.Table:
    """Return the rows of the remaining nodes, under their new numbers."""
    node = table["node"].to_numpy()
    table = table.filter(pa.array(keep[node]))
    at = table.schema.get_field_index("node")
    return table.set_column(at, "node", pa.array(number[table["node"].to_numpy()], pa.int32()))


def arranged(nodes: pa.Table, pods: pa.Table, **others: Any) -> Snapshot:
    """Return a snapshot from pods in any order: placed ones are sorted by node, keeping their
    order within one.
    """
    node = pods["node"].to_numpy()
    ended = pc.is_in(pods["phase"].cast(pa.string()), pa.array(TERMINAL)).to_numpy()
    counts = (node >= 0) & ~ended
    order = np.argsort(np.where(counts, node, nodes.num_rows), kind="stable")
    if np.any(np.diff(order) != 1):
        pods = pods.take(pa.array(order))
    per_node = np.bincount(node[counts], minlength=nodes.num_rows).astype(np.int64)
    if "pods" in nodes.column_names:
        nodes = nodes.drop_columns(["pods"])
    return Snapshot(nodes=nodes.append_column("pods", pa.array(per_node)), pods=pods, **others)
