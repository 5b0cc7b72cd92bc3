"""The columnar snapshot file: a stored (uncompressed) zip of Parquet tables and a manifest.

One file, read by memory map, a member at a time and only the row groups asked for; `unzip` gives plain
Parquet to any other tool. The format is described in `docs/snapshot-format.md`.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.host.files import replacing_file
from engine.plan.snapshot.columns import Snapshot

FORMAT = "kubengine-snapshot"
FORMAT_VERSION = 1
SUFFIX = ".kes"
MAGIC = b"PK\x03\x04"
MANIFEST = "manifest.json"
TABLES = ("nodes", "pods", "templates", "images", "devices", "budgets", "priority_classes")
ROW_GROUP = 131_072
MAX_TABLE = 64 * 2**30
_LOCAL_HEADER = 30


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Atomically. Raises `Refused` with the path."""
    with replacing_file(path) as file:
        write_stream(snapshot, file)


def write_stream(snapshot: Snapshot, file: Any) -> None:
    """To any binary stream; a pipe will do."""
    manifest = {
        "format": FORMAT,
        "formatVersion": FORMAT_VERSION,
        "nodes": snapshot.node_count,
        "pods": snapshot.pods.num_rows,
        "placed": snapshot.placed,
        "meta": snapshot.meta,
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr(MANIFEST, msgspec.json.encode(manifest))
        for name in TABLES:
            sink = pa.BufferOutputStream()
            table = getattr(snapshot, name)
            pq.write_table(
                table,
                sink,
                row_group_size=ROW_GROUP,
                compression="lz4",
                use_dictionary=[f.name for f in table.schema if pa.types.is_dictionary(f.type)]
                + [n for n in table.column_names if n in ("template", "priority", "qos", "flags", "node")],
                column_encoding={
                    f.name: "PLAIN"
                    for f in table.schema
                    if pa.types.is_large_string(f.type) or pa.types.is_float64(f.type)
                }
                or None,
                write_statistics=False,
            )
            archive.writestr(f"{name}.parquet", sink.getvalue())


class SnapshotFile:
    """An open snapshot file. `load` reads it whole, `shards` a bounded number of pods at a time."""

    def __init__(self, path: Path) -> None:
        """Raises `InvalidInput` naming the path if it is not one, is cut, or of a later format."""
        self.path = path
        try:
            self._map = pa.memory_map(str(path))
            with zipfile.ZipFile(path) as archive:
                self._members = {info.filename: self._extent(info) for info in archive.infolist()}
            self.manifest: dict[str, Any] = msgspec.json.decode(self._buffer(MANIFEST).to_pybytes())
            if self.manifest.get("format") != FORMAT:
                raise InvalidInput("not a Kubengine snapshot", subject=str(path))
            if self.manifest.get("formatVersion") != FORMAT_VERSION:
                found = self.manifest.get("formatVersion")
                raise InvalidInput(
                    f"format {found!r}; this version reads {FORMAT_VERSION}", subject=str(path)
                )
            missing = [name for name in TABLES if f"{name}.parquet" not in self._members]
            if missing:
                raise InvalidInput(f"has no table {missing[0]}", subject=str(path))
            self._small = {name: self._read(name) for name in TABLES if name != "pods"}
        except InvalidInput:
            raise
        except (OSError, zipfile.BadZipFile, pa.ArrowException, msgspec.DecodeError, KeyError) as error:
            raise InvalidInput(f"not a readable snapshot: {error}", subject=str(path)) from None

    def _extent(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_TABLE:
            raise InvalidInput(f"{info.filename} is not stored plainly", subject=str(self.path))
        header = self._map.read_at(_LOCAL_HEADER, info.header_offset)
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return info.header_offset + _LOCAL_HEADER + names, info.file_size

    def _buffer(self, member: str) -> pa.Buffer:
        at, size = self._members[member]
        self._map.seek(at)
        return self._map.read_buffer(size)

    def _parquet(self, name: str) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(self._buffer(f"{name}.parquet")), pre_buffer=False)

    def _read(self, name: str) -> pa.Table:
        return self._parquet(name).read(use_threads=True).combine_chunks()

    @property
    def node_count(self) -> int:
        return int(self._small["nodes"].num_rows)

    @property
    def pod_count(self) -> int:
        return int(self._parquet("pods").metadata.num_rows)

    def load(self) -> Snapshot:
        """All of it in memory."""
        try:
            pods = self._read("pods")
            return self._with(pods)
        except pa.ArrowException as error:
            raise InvalidInput(f"not a readable snapshot: {error}", subject=str(self.path)) from None

    def _with(self, pods: pa.Table) -> Snapshot:
        snapshot = Snapshot(pods=pods, meta=self.manifest.get("meta", {}), **self._small)
        if snapshot.placed > pods.num_rows:
            raise InvalidInput("names more pods per node than it holds", subject=str(self.path))
        return snapshot

    def bounds(self, max_pods: int) -> list[tuple[int, int]]:
        """Ranges of nodes with about `max_pods` pods each, at least one node."""
        counts = self._small["nodes"]["pods"].to_numpy()
        return node_ranges(counts, max_pods)

    def shard(self, first: int, last: int) -> Snapshot:
        """Nodes `first` to `last` (excluded), reading only the row groups that hold their pods."""
        counts = self._small["nodes"]["pods"].to_numpy()
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        begin, end = int(offsets[first]), int(offsets[last])
        file = self._parquet("pods")
        starts = np.cumsum([0] + [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)])
        groups = [g for g in range(file.num_row_groups) if starts[g] < end and starts[g + 1] > begin]
        if groups:
            pods = file.read_row_groups(groups).slice(begin - int(starts[groups[0]]), end - begin)
        else:
            pods = file.schema_arrow.empty_table()
        whole = Snapshot(pods=pods, meta=self.manifest.get("meta", {}), **self._small)
        return whole.shard_of(first, last, begin)

    def shards(self, max_pods: int) -> Iterator[Snapshot]:
        """The cluster node range by node range, in order."""
        for first, last in self.bounds(max_pods):
            yield self.shard(first, last)


def node_ranges(counts: NDArray[np.int64], max_pods: int) -> list[tuple[int, int]]:
    """Consecutive node ranges whose pods add up to at most `max_pods` where one node allows it."""
    ranges = []
    first, total = 0, 0
    for index, count in enumerate(counts.tolist()):
        if index > first and total + count > max_pods:
            ranges.append((first, index))
            first, total = index, 0
        total += count
    if len(counts):
        ranges.append((first, len(counts)))
    return ranges


def is_snapshot_file(path: str) -> bool:
    """By its first bytes."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def spooled(stream: io.BufferedIOBase) -> Path:
    """A snapshot that comes through a pipe, as a temporary file which the caller unlinks once it is open."""
    with tempfile.NamedTemporaryFile(prefix="kubengine-", suffix=SUFFIX, delete=False) as file:
        while chunk := stream.read(1 << 20):
            file.write(chunk)
    return Path(file.name)
