"""Read and write the columnar snapshot file: a stored (uncompressed) zip of Parquet tables and a manifest.

One file, read by memory map, a member at a time and only the requested row groups; `unzip` extracts plain
Parquet for any other tool. The format is described in `docs/snapshot-format.md`.
"""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.host.files import replacing_file
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.distinct import distinct
from engine.plan.snapshot.lazy_table import LazyTable, texts_in_order, whole
from engine.plan.snapshot.node_labels import label_columns
from engine.plan.snapshot.parquet_bounds import check_bounds, plain_texts, repeated_texts
from engine.plan.snapshot.schema import (
    check_pods,
    checked_columns,
    checked_manifest,
    checked_names,
)

FORMAT = "kubengine-snapshot"
FORMAT_VERSION = 2
OLDER_VERSIONS = (1,)
"""Formats that are still read. The first has no columns of nodes' labels and taints."""
SUFFIX = ".kes"
MAGIC = b"PK\x03\x04"
MANIFEST = "manifest.json"
TABLES = ("nodes", "pods", "templates", "images", "devices", "budgets", "priority_classes", "volumes",
          "attach_limits", "dynamic_resources")  # fmt: skip
LATER_TABLES = ("volumes", "attach_limits", "dynamic_resources")
"""Tables that files in older formats lack; they are empty then."""
ROW_GROUP = 131_072
MOST_PARTS = 32
"""Row groups of columns that are kept for single values."""
READERS = 2
"""Parts of a column that are read in advance."""
MAX_TABLE = 64 * 2**30
_LOCAL_HEADER = 30
_BROKEN = (
    OSError, EOFError, ValueError, KeyError, IndexError, TypeError, OverflowError, NotImplementedError,
    MemoryError, struct.error, zipfile.BadZipFile, pa.ArrowException,
)  # fmt: skip
"""What the zip and Parquet readers raise for invalid bytes."""
T = TypeVar("T")


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot atomically. Raise `Refused` with the path."""
    with replacing_file(path) as file:
        write_stream(snapshot, file)


def write_stream(snapshot: Snapshot, file: Any) -> None:
    """Write a snapshot to any binary stream, including a pipe."""
    manifest = {
        "format": FORMAT,
        "formatVersion": FORMAT_VERSION,
        "nodes": snapshot.node_count,
        "pods": snapshot.pods.num_rows,
        "placed": snapshot.placed,
        "meta": snapshot.meta,
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr(MANIFEST, encode_json(manifest))
        for name in TABLES:
            sink = pa.BufferOutputStream()
            table = whole(getattr(snapshot, name))
            if name == "nodes":
                for column, values in label_columns(snapshot).items():
                    table = table.append_column(column, values)
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
    """Read an open snapshot file. `load` reads it whole, `shards` a bounded number of pods at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raise `InvalidInput` naming the path if it is not a snapshot, is truncated, or of a
        later format.
        """
        self.path = path
        with self._faults_named():
            self._map = pa.memory_map(str(path))
            with zipfile.ZipFile(path) as archive:
                self._members = {info.filename: self._extent(info) for info in archive.infolist()}
            manifest = checked_manifest(self._buffer(MANIFEST).to_pybytes())
            if manifest.format != FORMAT:
                raise InvalidInput("not a Kubengine snapshot")
            if manifest.format_version not in (*OLDER_VERSIONS, FORMAT_VERSION):
                known = " and ".join(map(str, (*OLDER_VERSIONS, FORMAT_VERSION)))
                raise InvalidInput(f"format {manifest.format_version}; this version reads {known}")
            self.meta = manifest.meta
            there = [name for name in TABLES if f"{name}.parquet" in self._members]
            missing = [name for name in TABLES if name not in (*there, *LATER_TABLES)]
            if missing:
                raise InvalidInput(f"has no table {missing[0]}")
            self._texts: dict[str, list[str]] = {}  # those that another writer than ours has repeated
            self._files = {name: self._parquet(name) for name in there}
            for name, file in self._files.items():
                checked_names(name, file.schema_arrow.names)
            self._reader = ThreadPoolExecutor(1, "plan-read-ahead")
            self._small = {name: self._table(name) for name in there if name != "pods"}
            self._counts: NDArray[np.int64] = self._small["nodes"]["pods"].to_numpy()

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        """Turn every error from reading a broken file into one that names the file."""
        try:
            yield
        except InvalidInput as error:
            text = f"{error.subject}: {error.message}" if error.subject else error.message
            raise InvalidInput(text, subject=str(self.path)) from None
        except _BROKEN as error:
            text = " ".join(str(error).split())[:200]
            if isinstance(error, zipfile.BadZipFile) and is_snapshot_file(str(self.path)):
                # The directory of a zip file is at its end.
                text = f"it begins as one, but its end is missing or damaged ({text})"
            raise InvalidInput(f"not a readable snapshot: {text}", subject=str(self.path)) from None

    def _extent(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_TABLE:
            raise InvalidInput(f"{info.filename} is compressed; expected it stored")
        header = self._map.read_at(_LOCAL_HEADER, info.header_offset)
        # The extra field of a local header may have another length than the one in the archive's directory.
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return info.header_offset + _LOCAL_HEADER + names, info.file_size

    def _buffer(self, member: str) -> pa.Buffer:
        at, size = self._members[member]
        self._map.seek(at)
        return self._map.read_buffer(size)

    def _parquet(self, name: str) -> pq.ParquetFile:
        data = self._buffer(f"{name}.parquet")
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        check_bounds(file.metadata, f"{name}.parquet")
        texts = self._texts[name] = repeated_texts(file)
        if not texts:
            return file
        return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, read_dictionary=texts)

    def _table(self, name: str, groups: Sequence[int] | None = None) -> LazyTable:
        """Return a table, or some of its row groups."""
        file, texts = self._files[name], self._texts[name]
        chosen = range(file.num_row_groups) if groups is None else groups

        starts = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in chosen)])

        def read(
            names: Sequence[str], groups: Sequence[int], rows: NDArray[np.int64] | None = None
        ) -> pa.Table:
            with self._faults_named():
                found = file.read_row_groups(groups, names)
                if rows is not None:
                    # Only these are used, so only these are checked.
                    found = found.take(pa.array(rows))
                found = plain_texts(found, [text for text in texts if text in names], f"{name}.parquet")
                return checked_columns(name, found, self.node_count)

        coming: dict[str, Future[pa.Table]] = {}

        def ahead(column: str) -> None:
            # A single call for all parts: a thread that asks for the interpreter's lock for each of them gets
            # it 5 ms later at worst.
            if column not in coming:
                coming[column] = self._reader.submit(read, [column], chosen)

        def columns(names: Sequence[str]) -> pa.Table:
            found = {column: coming.pop(column).result()[column] for column in names if column in coming}
            left = [column for column in names if column not in found]
            if left:
                read_now = read(left, chosen)
                found |= {column: read_now[column] for column in left}
            return pa.table(found).combine_chunks()

        @lru_cache(maxsize=MOST_PARTS)
        def part(column: str, number: int) -> pa.ChunkedArray:
            return read([column], [chosen[number]])[column]

        def value(column: str, row: int) -> Any:
            number = int(np.searchsorted(starts, row, "right")) - 1
            return part(column, number)[row - int(starts[number])].as_py()

        def parts(column: str) -> Iterator[pa.ChunkedArray]:
            if column in coming:
                return (pa.chunked_array([chunk]) for chunk in coming.pop(column).result()[column].chunks)
            return in_advance(lambda group: read([column], [group])[column], chosen)

        kept: dict[tuple[str, int], _KeptTexts] = {}

        def texts_of_part(column: str, group: int, rows: NDArray[np.int64]) -> pa.ChunkedArray:
            """Return the texts in these rows of a row group. Only they are kept the first time, as one answer
            may be all; the second time the part is kept as a whole, as further ones are likely.
            """
            known = kept.get((column, group))
            if known is None:
                known = kept[column, group] = _KeptTexts(read([column], [group], rows)[column], rows)
            if known.rows is not None:
                if np.array_equal(known.rows, rows):
                    return known.texts
                known = kept[column, group] = _KeptTexts(read([column], [group])[column])
            return known.texts.take(pa.array(rows))

        def taken(column: str, rows: NDArray[np.int64]) -> pa.Array:
            there, which = distinct(np.searchsorted(starts, rows, "right") - 1)

            def some(number: int) -> pa.ChunkedArray:
                place = int(there[number])
                return texts_of_part(column, chosen[place], rows[which == number] - starts[place])

            return texts_in_order(list(in_advance(some, range(len(there)))), which)

        several = len(chosen) > 1
        return LazyTable(
            file.schema_arrow.names,
            columns,
            lambda: int(starts[-1]),
            value if several else None,
            parts if several else None,
            taken if several else None,
            ahead if several else None,
        )

    @property
    def node_count(self) -> int:
        return int(self._files["nodes"].metadata.num_rows)

    @property
    def pod_count(self) -> int:
        return int(self._files["pods"].metadata.num_rows)

    def load(self) -> Snapshot:
        """Load all of it, each column into memory on first use. Raise `InvalidInput` with the file, table and
        column, also on later use of a column.
        """
        pods = self._table("pods")
        with self._faults_named():
            check_pods(pods, self._counts, 0, self._small["templates"].num_rows)
        return Snapshot(pods=pods, meta=self.meta, **self._small)

    def bounds(self, max_pods: int) -> list[tuple[int, int]]:
        """Return ranges of nodes with about `max_pods` pods each, at least one node."""
        return node_ranges(self._counts, max_pods)

    def shard(self, first: int, last: int) -> Snapshot:
        """Return nodes `first` to `last` (excluded), reading only the row groups that hold their pods."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._counts)])
        begin, end = int(offsets[first]), int(offsets[last])
        metadata = self._files["pods"].metadata
        starts = np.cumsum([0] + [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])
        groups = np.flatnonzero((starts[:-1] < end) & (starts[1:] > begin)).tolist()
        skipped = int(starts[groups[0]]) if groups else begin
        read = Snapshot(pods=self._table("pods", groups), meta=self.meta, **self._small)
        shard = read.shard_of(first, last, skipped)
        with self._faults_named():
            check_pods(shard.pods, self._counts[first:last], 0, self._small["templates"].num_rows)
        return shard

    def shards(self, max_pods: int) -> Iterator[Snapshot]:
        """Yield the cluster node range by node range, in order."""
        for first, last in self.bounds(max_pods):
            yield self.shard(first, last)


class _KeptTexts(NamedTuple):
    """Hold texts of a row group: those in `rows`, int64[n], or all of them."""

    texts: pa.ChunkedArray
    rows: NDArray[np.int64] | None = None


def in_advance(compute: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """Yield `compute(item)` for each item, while a thread computes the next ones: reading a part of a column
    and using the one before it take about as long.
    """
    coming, waiting = deque[Future[T]](), iter(items)
    with ThreadPoolExecutor(READERS) as pool:
        coming.extend(pool.submit(compute, item) for item in islice(waiting, READERS))
        while coming:
            found = coming.popleft().result()
            coming.extend(pool.submit(compute, item) for item in islice(waiting, 1))
            yield found


def node_ranges(counts: NDArray[np.int64], max_pods: int) -> list[tuple[int, int]]:
    """Return consecutive node ranges whose pods add up to at most `max_pods`, unless one node has more."""
    ends = np.cumsum(counts)
    ranges = []
    first = before = 0
    while first < len(ends):
        last = max(int(np.searchsorted(ends, before + max_pods, "right")), first + 1)
        ranges.append((first, last))
        first, before = last, int(ends[last - 1])
    return ranges


def is_snapshot_file(path: str) -> bool:
    """Tell whether a file is a snapshot, by its first bytes."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def spooled(stream: io.BufferedIOBase) -> Path:
    """Copy a snapshot from a pipe to a temporary file, which the caller unlinks once it is open."""
    with tempfile.NamedTemporaryFile(prefix="kubengine-", suffix=SUFFIX, delete=False) as file:
        while chunk := stream.read(1 << 20):
            file.write(chunk)
    return Path(file.name)
