"""Write answers as JSON, CSV, Parquet or a table for the terminal, together with their provenance."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from io import StringIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.version import engine_version
from engine.host.files import replace_file, replacing_file
from engine.plan.answers.answer import COLUMNS, Answer
from engine.plan.answers.readable import printable, readable

WIDTH = 160
"""Columns of a table in a file or a pipe."""
FORMATS = ("table", "json", "csv", "parquet", "html")
_BY_SUFFIX = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".html": "html", ".htm": "html"}
_JSON_BATCH = 65_536
_NUMERIC = "amount"


def provenance(meta: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input's hash and sources, versions, seed, and the question."""
    return {
        "input_hash": meta.get("input_hash", ""),
        "sources": list(meta.get("sources", ())),
        "snapshot_version": meta.get("version", ""),
        "synthetic": meta.get("synthetic"),
        "placed_by": meta.get("placed_by", ""),
        "faults": dict(meta.get("faults", {})),
        "kubengine": engine_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "asked": dict(asked),
    }


def format_for(path: str, given: str) -> str:
    """Return the format requested, else the one of the file's suffix, else a table. Raise `InvalidInput`."""
    if given:
        return given
    if not path:
        return "table"
    found = _BY_SUFFIX.get(Path(path).suffix)
    if found is None:
        raise InvalidInput(f"ends with none of {', '.join(_BY_SUFFIX)}; give --format", subject=path)
    return found


def write_answer(
    answer: Answer,
    source: Mapping[str, Any],
    format: str,
    path: str,
    limit: int,
    console: Console | None = None,
) -> None:
    """Write an answer to a file (atomically) or standard output; tables go to `console`.

    `report.write_report` writes `html`.
    """
    if format == "table":
        if path:
            text = StringIO()
            print_table(answer, Console(file=text, width=WIDTH), limit)
            replace_file(Path(path), text.getvalue())
        else:
            print_table(answer, console or Console(), limit)
        return
    writer: Callable[[BinaryIO], None] = {
        "json": lambda file: _json(answer, source, file),
        "csv": lambda file: pa_csv.write_csv(plain(answer.table), file),
        "parquet": lambda file: _parquet(answer, source, file),
    }[format]
    if path:
        with replacing_file(Path(path)) as file:
            writer(file)
    elif format == "parquet" and sys.stdout.isatty():
        raise InvalidInput("cannot print Parquet to a terminal; give -o FILE", subject="--format")
    else:
        writer(sys.stdout.buffer)
        sys.stdout.buffer.flush()


def plain(table: pa.Table) -> pa.Table:
    """Replace dictionary columns, for writers and groupings that do not support them."""
    fields = [(f.name, pa.large_string() if f.name != _NUMERIC else pa.int64()) for f in table.schema]
    return table.cast(pa.schema(fields))


def _json(answer: Answer, source: Mapping[str, Any], file: BinaryIO) -> None:
    file.write(b'{"provenance":' + encode_json(source) + b',"headline":' + encode_json(answer.headline))
    file.write(b',"notes":' + encode_json(answer.note_lines) + b',"rows":[')
    separator = b"\n"
    for batch in plain(answer.table).to_batches(_JSON_BATCH):
        for row in batch.to_pylist():
            file.write(separator + encode_json(row))
            separator = b",\n"
    file.write(b"\n]}\n")


def _parquet(answer: Answer, source: Mapping[str, Any], file: BinaryIO) -> None:
    metadata = {b"kubengine.provenance": encode_json(source)}
    metadata[b"kubengine.notes"] = encode_json(answer.note_lines)
    pq.write_table(answer.table.replace_schema_metadata(metadata), file, compression="zstd")


def summary(table: pa.Table) -> pa.Table:
    """Sum rows and amounts per scenario, decision and reason, in order of first appearance."""
    keys = ["scenario", "decision", "reason", "unit"]
    return plain(table).group_by(keys, use_threads=False).aggregate([("amount", "count"), ("amount", "sum")])


def print_table(answer: Answer, console: Console, limit: int) -> None:
    """Print the counts of each decision, then the first rows, then the notes."""
    if answer.headline:
        console.print(Text(printable(answer.headline), style="bold"))
    found = summary(answer.table).to_pylist()
    for scenario, kinds in groupby(found[:limit], key=itemgetter("scenario")):
        console.print(
            Text(printable(f"decisions of {scenario}") if scenario else "decisions", style="italic")
        )
        overview = Table()
        for heading in ("decision", "reason"):
            overview.add_column(heading, overflow="fold")
        overview.add_column("rows", justify="right")
        overview.add_column("amount", justify="right")
        for row in kinds:
            amounts = [f"{row['amount_count']:,}", readable(row["amount_sum"], row["unit"])]
            overview.add_row(*(Text(printable(cell)) for cell in (row["decision"], row["reason"], *amounts)))
        console.print(overview)
    if len(found) > limit:
        console.print(Text(f"… {len(found) - limit:,} more kinds"))
    names = [name for name in COLUMNS if name not in ("unit", "scenario")]
    first = plain(answer.table.slice(0, limit)).to_pylist()
    for scenario, listed in groupby(first, key=itemgetter("scenario")):
        title = f"rows of {scenario}" if scenario else f"rows ({len(answer):,})"
        console.print(Text(printable(title), style="italic"))
        rows = Table()
        for name in names:
            rows.add_column(name, justify="right" if name == _NUMERIC else "left", overflow="fold")
        for row in listed:
            row["amount"] = readable(row["amount"], row["unit"])
            rows.add_row(*(Text(printable(str(row[name]))) for name in names))
        console.print(rows)
    if len(answer) > limit:
        console.print(Text(f"… {len(answer) - limit:,} more rows: --limit, or -o FILE.csv"))
    for line in answer.note_lines:
        console.print(Text(printable(f"note: {line}")))
