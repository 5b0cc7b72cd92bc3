"""Collects node rows of a snapshot: amounts, conditions, readings, and the images that a node reports."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.quantity import Quantity
from engine.api.resources import scaled
from engine.api.struct import decode_hook
from engine.plan.reading.documents import NodeDocument
from engine.plan.reading.templates import Unusable, intern
from engine.plan.snapshot.columns import IMAGE_FIELDS
from engine.plan.snapshot.faults import FaultLog
from engine.plan.snapshot.lazy_table import column_of
from engine.plan.snapshot.node_cpus import PINNING, PROCESSORS, PinnedState, pinning_text
from engine.tables import ABSENT, ResourceNames

STATUS_IMAGES_LIMIT = 50
"""`nodeStatusMaxImages`: a status with this many images is probably incomplete."""
MAX_NODE_AMOUNT = 2**62
READINGS = (
    "memory_available", "memory_working_set", "memory_capacity",
    "pods_memory_available", "pods_memory_working_set",
    "nodefs_capacity", "nodefs_available", "nodefs_inodes", "nodefs_inodes_free",
    "imagefs_capacity", "imagefs_available", "imagefs_inodes", "imagefs_inodes_free",
    "containerfs_capacity", "containerfs_available", "containerfs_inodes", "containerfs_inodes_free",
    "pid_max", "pid_used", "read_at",
)  # fmt: skip

_quantities = msgspec.json.Decoder(dict[str, Quantity], dec_hook=decode_hook)
_node = msgspec.json.Decoder(Node, dec_hook=decode_hook)


class _Row:
    __slots__ = (
        "allocatable", "arch", "capacity", "config", "document", "images_truncated", "kubelet_version",
        "os", "pinning", "processors", "readings", "ready", "unschedulable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.document = ""
        self.allocatable: dict[int, int] = {}
        self.capacity: dict[int, int] = {}
        self.ready: bool | None = None
        self.unschedulable = False
        self.images_truncated = False
        self.kubelet_version = self.os = self.arch = ""
        self.config = ""
        self.processors = ""
        self.pinning: PinnedState | None = None
        self.readings: dict[str, int] = {}


class NodeRows:
    """Hold nodes by name. A node that pods name and no document describes has a row without amounts."""

    def __init__(self, resources: ResourceNames, faults: FaultLog) -> None:
        self.index: dict[str, int] = {}
        self._rows: dict[int, _Row] = {}
        self._resources = resources
        self._faults = faults
        self._images: dict[str, list[Any]] = {name: [] for name in IMAGE_FIELDS}
        self._image_sources: dict[int, str] = {}

    def row(self, name: str) -> int:
        return self.index.setdefault(name, len(self.index))

    def add(self, node: NodeDocument, origin: str) -> None:
        """Append a node. Raises `Unusable` with the faulty field as subject."""
        name = node.metadata.name
        if not name:
            raise Unusable("expected a name", subject="metadata.name")
        row = _Row()
        row.allocatable = self._amounts(node.status.allocatable, "status.allocatable")
        row.capacity = self._amounts(node.status.capacity, "status.capacity")
        number = self.row(name)
        if number in self._rows and self._rows[number].document:
            raise Unusable("is in the snapshot already; this one is ignored", subject="metadata.name")
        info = node.status.node_info
        row.kubelet_version, row.os, row.arch = info.kubelet_version, info.operating_system, info.architecture
        for condition in node.status.conditions or ():
            if condition.type == "Ready":
                row.ready = condition.status == "True"
        row.unschedulable = node.spec.unschedulable
        row.document = _document(node)
        _check_document(row.document)
        old = self._rows.get(number)
        if old is not None:
            row.readings, row.config = old.readings, old.config
            row.processors, row.pinning = old.processors, old.pinning
        self._rows[number] = row
        images = node.status.images or ()
        row.images_truncated = len(images) >= STATUS_IMAGES_LIMIT
        if self._image_sources.get(number) != "runtime":
            for image in images:
                names = image.names or [""]
                self.add_image(number, names[0], " ".join(names), image.size_bytes, source="status")

    def add_image(
        self,
        node: int,
        image: str,
        names: str,
        size: int,
        *,
        source: str,
        pinned: bool = False,
        in_use: bool | None = None,
    ) -> None:
        values = (node, image, names, max(0, min(size, MAX_NODE_AMOUNT)), None, None, pinned, in_use, source)
        for column, value in zip(self._images.values(), values, strict=True):
            column.append(value)

    def replace_images(self, node: int) -> None:
        """Replace the images of the status, which may be incomplete, by those of the runtime."""
        self._image_sources[node] = "runtime"

    def mark_in_use(self, used: dict[int, set[str]]) -> None:
        """Record the images that the runtime's containers use, by node: image ids and references."""
        columns = self._images
        for index, node in enumerate(columns["node"]):
            if node in used and columns["source"][index] == "runtime":
                names = {columns["image"][index], *columns["names"][index].split()}
                columns["in_use"][index] = bool(names & used[node])

    def set_readings(self, node: int, readings: dict[str, int]) -> None:
        self._known(node).readings.update(readings)

    def set_config(self, node: int, config: str) -> None:
        self._known(node).config = config

    def set_processors(self, node: int, processors: str) -> None:
        self._known(node).processors = processors

    def pinning(self, node: int) -> PinnedState:
        """Return what the CPU and memory managers of a node keep, to be completed."""
        row = self._known(node)
        if row.pinning is None:
            row.pinning = PinnedState()
        return row.pinning

    def _known(self, number: int) -> _Row:
        return self._rows.setdefault(number, _Row())

    def _amounts(self, raw: Raw, field: str) -> dict[int, int]:
        if not bytes(raw) or bytes(raw) == b"null":
            return {}
        try:
            quantities = _quantities.decode(raw)
        except msgspec.ValidationError as error:
            raise Unusable(str(error), subject=field) from None
        amounts = {}
        for name, quantity in quantities.items():
            if quantity.nano < 0:
                raise Unusable(f"{quantity} is negative", subject=f"{field}.{name}")
            amount = scaled(name, quantity)
            if amount > MAX_NODE_AMOUNT:
                raise Unusable(f"{str(quantity)[:64]} is more than a node has", subject=f"{field}.{name}")
            amounts[intern(self._resources, name)] = amount
        return amounts

    def table(self) -> pa.Table:
        """Return one row per node, in the order in which they were first named."""
        blank = _Row()
        rows = [self._rows.get(number, blank) for number in range(len(self.index))]
        columns: dict[str, Any] = {
            "name": pa.array(list(self.index), pa.string()),
            "document": pa.array([row.document for row in rows], pa.large_string()),
            "known": np.array([bool(row.document) for row in rows], bool),
            "ready": pa.array([row.ready for row in rows], pa.bool_()),
            "unschedulable": np.array([row.unschedulable for row in rows], bool),
            "images_truncated": np.array([row.images_truncated for row in rows], bool),
            "kubelet_version": pa.array([row.kubelet_version for row in rows], pa.string()),
            "os": pa.array([row.os for row in rows], pa.string()),
            "arch": pa.array([row.arch for row in rows], pa.string()),
            "config": pa.array([row.config for row in rows], pa.large_string()),
        }
        if any(row.processors for row in rows):
            columns[PROCESSORS] = pa.array([row.processors for row in rows], pa.large_string())
            pinned = [pinning_text(row.pinning) if row.pinning is not None else "" for row in rows]
            columns[PINNING] = pa.array(pinned, pa.large_string())
        ids = dict(self._resources.ids)
        for name in (*self._resources.names, "pods"):
            for group in ("allocatable", "capacity"):
                values = [getattr(row, group).get(ids[name], ABSENT) for row in rows]
                columns[f"{group}/{name}"] = np.array(values, np.int64)
        for reading in READINGS:
            columns[f"reading/{reading}"] = pa.array([r.readings.get(reading) for r in rows], pa.int64())
        return pa.table(columns)

    def image_table(self) -> pa.Table:
        """Return images sorted by node; the runtime's list replaces that of the status."""
        schema = pa.schema(list(IMAGE_FIELDS.items()))
        table = pa.table({name: column_of(v, schema.field(name).type) for name, v in self._images.items()})
        if self._image_sources:
            node = table["node"].to_numpy()
            asked = np.isin(node, list(self._image_sources))
            runtime = np.array([source == "runtime" for source in self._images["source"]], bool)
            table = table.filter(pa.array(~asked | runtime))
        order = np.argsort(table["node"].to_numpy(), kind="stable")
        return table.take(pa.array(order)).combine_chunks()


def _check_document(text: str) -> None:
    try:
        _node.decode(text)
    except (msgspec.DecodeError, InvalidInput) as error:
        problem, _, path = str(error).partition(" - at `$.")
        raise Unusable(problem, subject=path.rstrip("`")) from None


def _document(node: NodeDocument) -> str:
    """Return the parts of the node that predicates need: labels, taints, allocatable."""
    meta: dict[str, Any] = {"name": node.metadata.name}
    if bytes(node.metadata.labels):
        meta["labels"] = node.metadata.labels
    spec: dict[str, Any] = {"unschedulable": True} if node.spec.unschedulable else {}
    if bytes(node.spec.taints):
        spec["taints"] = node.spec.taints
    status: dict[str, Any] = {}
    if bytes(node.status.allocatable):
        status["allocatable"] = node.status.allocatable
    if bytes(node.status.capacity):
        status["capacity"] = node.status.capacity
    plain = {"metadata": meta, "spec": spec, "status": status}
    return msgspec.json.format(encode_json(plain), indent=-1).decode()
