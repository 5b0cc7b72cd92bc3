"""Read a history from tables of use: CSV or Parquet, one row per moment and container or node."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.api.version import engine_version
from engine.plan.history.codes import encode
from engine.plan.history.history import History, HistoryBuilder, Times
from engine.plan.reading.table_file import read_table
from engine.plan.snapshot.faults import FaultLog

NAMES: Final = ("node", "namespace", "pod", "container")
AMOUNTS: Final = {"memory": ("memory", "node-memory", 1.0), "cpu": ("cpu", "node-cpu", 1_000_000.0)}
"""Columns with amounts, the measure of a container and of a node that each is, and what its unit is scaled
by.
"""


def history_from_tables(paths: list[str], step: int, faults: FaultLog) -> History:
    """Read tables with the columns `time` (Unix seconds or timestamps), `namespace`, `pod` and `container`,
    or `node` without a pod, and `memory` (bytes) or `cpu` (cores), or both.

    Values of one step are combined: the largest counts. A value that cannot be read is left out and recorded
    in `faults`. Raise `InvalidInput` with the file and the column if a column has no other values.
    """
    tables = [_checked(path, faults) for path in paths]
    first = min(float(table["time"].to_numpy().min()) for table in tables)
    last = max(float(table["time"].to_numpy().max()) for table in tables)
    # A value belongs to the step that ends at or after it.
    start = int(-(-first // step)) * step
    builder = HistoryBuilder(Times(start, step, int(-(-last // step)) - start // step + 1))
    for path, table in zip(paths, tables, strict=True):
        _add(builder, table, path, faults)
    meta = {"sources": paths, "version": engine_version(), "faults": dict(faults.counts.most_common(100))}
    return builder.history(meta)


def _checked(path: str, faults: FaultLog) -> pa.Table:
    table = read_table(path)
    there = table.column_names
    if "time" not in there:
        raise InvalidInput("has no column 'time'", subject=path)
    if not set(AMOUNTS) & set(there):
        raise InvalidInput("has neither a column 'memory' nor a column 'cpu'", subject=path)
    if "node" not in there and not {"namespace", "pod", "container"} <= set(there):
        raise InvalidInput("has no columns 'namespace', 'pod' and 'container'", subject=path)
    if not table.num_rows:
        raise InvalidInput("has no rows", subject=path)
    seconds = _seconds(table["time"], path)
    fine = (seconds > 0) & (seconds < 2**33)
    if not fine.any():
        raise InvalidInput(f"time: {_expected(table['time'], 'time', 0)}", subject=path)
    if not fine.all():
        wrong = np.flatnonzero(~fine)
        said = f"{_expected(table['time'], 'time', int(wrong[0]))}; rows left out for this: {len(wrong):,}"
        faults.add(path, f"row {int(wrong[0]) + 1}", "time", said, kind="rows without a time")
    columns = {"time": seconds}
    for name in NAMES:
        texts = table[name].cast(pa.string()).fill_null("") if name in there else None
        columns[name] = texts if texts is not None else pa.repeat(pa.scalar("", pa.string()), table.num_rows)
    for name in AMOUNTS:
        if name in there:
            columns[name] = _numbers(table[name], name, path)
    return pa.table(columns).filter(pa.array(fine))


def _seconds(column: pa.ChunkedArray, path: str) -> NDArray[np.float64]:
    """Return Unix seconds, NaN for a missing value and infinity for one that cannot be read."""
    if pa.types.is_timestamp(column.type):
        column = pc.divide(
            column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64()).cast(pa.float64()), 1000.0
        )
    elif pa.types.is_string(column.type):
        # One text that is no time makes a column of texts of all of them.
        column = pa.chunked_array([[_moment(text) for text in column.to_pylist()]], pa.float64())
    found: NDArray[np.float64] = _numbers(column, "time", path).to_numpy()
    return found


def _moment(text: str | None) -> float | None:
    number = _number(text)
    if number != math.inf:
        return number
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return math.inf
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _numbers(column: pa.ChunkedArray, name: str, path: str) -> pa.ChunkedArray:
    """Return a column as float64, in which infinity stands for a text that is no number. Raise `InvalidInput`
    if none is.
    """
    try:
        return column.cast(pa.float64())
    except pa.ArrowException:
        texts = column.cast(pa.string()).to_pylist()
        numbers = [_number(text) for text in texts]
        if not any(one is not None and math.isfinite(one) for one in numbers):
            raise InvalidInput(f"{name}: {_expected(column, name, 0)}", subject=path) from None
        return pa.chunked_array([numbers], pa.float64())


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return math.inf


def _expected(column: pa.ChunkedArray, name: str, row: int) -> str:
    unit = {"time": "Unix seconds or timestamps", "memory": "bytes", "cpu": "cores"}[name]
    return f"expected {unit}, got {str(column[row])[:40]!r}"


def _add(builder: HistoryBuilder, table: pa.Table, path: str, faults: FaultLog) -> None:
    times = builder.times
    at = np.ceil(table["time"].to_numpy() / times.step).astype(np.int64) - times.start // times.step
    codes = [table[name].combine_chunks().dictionary_encode() for name in NAMES]
    numbers = np.stack([column.indices.to_numpy() for column in codes], axis=1)
    texts = [column.dictionary.to_pylist() for column in codes]
    keys, which = np.unique(numbers, axis=0, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ends = np.bincount(which, minlength=len(keys)).cumsum()
    amounts = {name: table[name].to_numpy() for name in AMOUNTS if name in table.column_names}
    for number, rows in enumerate(np.split(order, ends[:-1])):
        node, namespace, pod, container = (
            names[code] for names, code in zip(texts, keys[number].tolist(), strict=True)
        )
        if not (namespace and container if pod else node):
            faults.add(path, f"row {int(rows[0]) + 1}", "", "names no container and no node")
            continue
        for name, values in amounts.items():
            of_container, of_node, scale = AMOUNTS[name]
            key = (of_container, "", namespace, pod, container) if pod else (of_node, node, "", "", "")
            _add_series(builder, key, at[rows], values[rows] * scale, path, faults)


def _add_series(
    builder: HistoryBuilder,
    key: tuple[str, str, str, str, str],
    at: NDArray[np.int64],
    values: NDArray[np.float64],
    path: str,
    faults: FaultLog,
) -> None:
    known = ~np.isnan(values)
    usable = known & np.isfinite(values) & (values >= 0)
    if (known & ~usable).any():
        named = f"container {'/'.join(key[2:])}" if key[3] else f"node {key[1]}"
        faults.add(path, named, key[0], "has values that are not amounts, which are left out")
    if usable.any():
        builder.add(key, at[usable], encode(values[usable]))
