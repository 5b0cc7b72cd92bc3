"""Arrange an answer's rows and the values of its nodes as JSON that the report's script reads."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from engine.api.encoding.json_text import encode_json
from engine.plan.answers.answer import COLUMNS, USED_AFTER, USED_BEFORE
from engine.plan.answers.output import plain
from engine.plan.answers.readable import readable

MAX_ROWS_SIZE: Final = 400_000
"""Bytes of embedded rows at most, so that a report stays below a megabyte."""
MAX_MAP_SIZE: Final = 350_000
MAX_MAPS: Final = 6
FEWEST_NODES: Final = 12
"""A map of fewer nodes says less than the table."""
TEXTS: Final = tuple(name for name in COLUMNS if name not in ("amount", "unit"))


def embedded_rows(table: pa.Table) -> tuple[str, int]:
    """Return the first rows as JSON, as many as there is space for, and their number.

    Each column is {`texts`, `codes`}; `amount` also has `values`, by which it is sorted.
    """
    count = len(table)
    while True:
        text = _escaped(_columns(table.slice(0, count)))
        if len(text) <= MAX_ROWS_SIZE or count < 2:
            return text, count
        count = int(count * min(MAX_ROWS_SIZE / len(text), 0.9))


def _columns(table: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in TEXTS:
        column = table[name].cast(pa.string()).combine_chunks().dictionary_encode()
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        found[name] = {"texts": column.dictionary.to_pylist(), "codes": column.indices.to_pylist()}
    numbers: dict[tuple[int, str], int] = {}
    pairs = zip(table["amount"].to_pylist(), table["unit"].to_pylist(), strict=True)
    codes = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
    found["amount"] = {
        "texts": [readable(amount, unit) for amount, unit in numbers],
        "values": [amount for amount, _ in numbers],
        "codes": codes,
    }
    return found


def embedded_maps(table: pa.Table) -> str:
    """Return the values of each node as JSON, {`start`, `nodes`, `end`, `maps`: [{`name`, `unit`, `values`}]}
    with null for a node without a row; empty if there are too few nodes.

    Names of nodes lack what all begin and end with. Bytes are in KiB.
    """
    rows = plain(table)
    rows = rows.filter(pc.not_equal(rows["node"], ""))
    nodes = rows["node"].unique().to_pylist()
    if len(nodes) < FEWEST_NODES:
        return ""
    number = {name: row for row, name in enumerate(nodes)}
    used = pc.is_in(rows["decision"], pa.array([USED_BEFORE, USED_AFTER], pa.large_string()))
    maps: dict[tuple[str, str], list[int | None]] = {}
    for part, by in (
        (rows.filter(pc.invert(used)), ("decision",)),
        (rows.filter(used), ("object", "decision")),
    ):
        grouped = part.group_by([*by, "unit", "node"], use_threads=False).aggregate([("amount", "sum")])
        for row in grouped.to_pylist():
            name = ": ".join(row[one] for one in by)
            values = maps.setdefault((name, row["unit"]), [None] * len(nodes))
            amount = row["amount_sum"]
            values[number[row["node"]]] = round(amount / 1024) if row["unit"] == "bytes" else amount
    ordered = sorted(maps.items(), key=lambda one: -len(set(one[1])))
    shown = [{"name": name, "unit": unit, "values": values} for (name, unit), values in ordered[:MAX_MAPS]]
    start = _common_start(nodes)
    end = _common_start([name[len(start) :][::-1] for name in nodes])[::-1]
    names = [name[len(start) : len(name) - len(end)] for name in nodes]
    while shown:
        text = _escaped({"start": start, "nodes": names, "end": end, "maps": shown})
        if len(text) <= MAX_MAP_SIZE:
            return text
        shown.pop()
    return ""


def _common_start(texts: list[str]) -> str:
    """Return what all texts begin with."""
    first, last = min(texts), max(texts)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same]


def _escaped(value: Any) -> str:
    """Return JSON that ends no element of the page."""
    return encode_json(value).decode().replace("<", "\\u003c")
