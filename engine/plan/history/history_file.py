"""Read and write the history file: an Arrow IPC file that is mapped into memory, so that any part of it is
read without the rest.

Its columns are those of the index and `values`, a list of 16-bit codes of fixed size (`codes`). The schema's
metadata has `kubengine.history`: JSON with the times, the sources and what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.host.files import replacing_file
from engine.plan.history.codes import Codes
from engine.plan.history.history import BLOCK, INDEX, History, Times
from engine.plan.snapshot.columnar_file import is_snapshot_file

FORMAT: Final = "kubengine-history"
FORMAT_VERSION: Final = 1
SUFFIX: Final = ".arrow"
MOST_MOMENTS: Final = 200_000
_METADATA: Final = b"kubengine.history"
_MAGIC: Final = b"ARROW1"
"""The first and the last bytes of an Arrow IPC file."""


class _Manifest(msgspec.Struct, rename="camel"):
    format: str
    format_version: int
    start: int
    step: int
    count: int
    meta: dict[str, Any] = {}


def write_history(history: History, path: Path) -> None:
    """Write a history atomically, one block in memory at a time. Raise `Refused` with the path."""
    times = history.times
    manifest = _Manifest(FORMAT, FORMAT_VERSION, times.start, times.step, times.count, history.meta)
    kind = pa.list_(pa.uint16(), times.count)
    schema = pa.schema([*INDEX, ("values", kind)], {_METADATA: encode_json(manifest)})
    index = history.index.unify_dictionaries().combine_chunks()
    with replacing_file(path) as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, max(len(history), 1), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(history)), dtype=np.int64)
            codes = history.codes(rows)
            values = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), times.count)
            part = index.slice(start, len(rows)).append_column(pa.field("values", kind), values)
            writer.write_table(part.replace_schema_metadata(schema.metadata))


def read_history(path: Path) -> History:
    """Open a history without reading its values. Raise `InvalidInput` naming the path."""
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            manifest = _manifest(reader.schema)
            times = Times(manifest.start, manifest.step, manifest.count)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
            blocks = [_codes(batch, times.count) for batch in batches]
            index = pa.Table.from_batches([batch.select(INDEX.names) for batch in batches]).cast(INDEX)
    except FileNotFoundError:
        raise InvalidInput(
            "there is no such file; `kubengine plan history` writes one", subject=str(path)
        ) from None
    except (OSError, KeyError, ValueError, pa.ArrowException, msgspec.MsgspecError) as error:
        text = _what_it_is(path) or " ".join(str(error).split())[:200]
        raise InvalidInput(f"not a readable history: {text}", subject=str(path)) from None
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=str(path)) from None
    for name in INDEX.names:
        if index[name].null_count:
            raise InvalidInput(f"{name}: values are missing", subject=str(path))
    index = index.unify_dictionaries().combine_chunks()
    return History(times, index, blocks, np.arange(index.num_rows), manifest.meta)


def _manifest(schema: pa.Schema) -> _Manifest:
    text = (schema.metadata or {}).get(_METADATA)
    if text is None:
        raise InvalidInput("is not a history of `kubengine plan history`")
    manifest = msgspec.json.decode(text, type=_Manifest)
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        raise InvalidInput(f"format {manifest.format_version}; this version reads {FORMAT_VERSION}")
    if not (
        0 < manifest.count <= MOST_MOMENTS and 0 < manifest.step <= 86_400 and 0 <= manifest.start < 2**33
    ):
        raise InvalidInput("its times are out of range")
    return manifest


def _codes(batch: pa.RecordBatch, count: int) -> Codes:
    column = batch["values"]
    if column.type != pa.list_(pa.uint16(), count) or column.null_count or column.values.null_count:
        raise InvalidInput(f"values: expected lists of {count} codes")
    codes: Codes = column.flatten().to_numpy().reshape(len(batch), count)
    return codes


def _what_it_is(path: Path) -> str:
    """Say what a file is that Arrow cannot read as a history, if its first and last bytes tell it."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_MAGIC))
            file.seek(max(path.stat().st_size - len(_MAGIC), 0))
            end = file.read()
    except OSError:
        return ""
    if begin == _MAGIC:
        return "it begins as one, but its end is missing or damaged" if end != _MAGIC else ""
    return "it is a snapshot" if is_snapshot_file(str(path)) else ""
