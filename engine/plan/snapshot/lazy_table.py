"""Provide tables whose columns are computed on first use: most questions need a few columns of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Columns = Callable[[Sequence[str]], pa.Table]
"""Compute these columns of a table."""


class LazyTable:
    """Offer the parts of `pa.Table` that access columns; `whole` returns a real table.

    The first use of a column raises its errors, not the opening of the table. With `value`, single values of
    a column that is not there yet are computed without it; with `codes`, what `coded` returns is, too. With
    `parts`, a column is searched without keeping it.
    """

    def __init__(
        self,
        column_names: Sequence[str],
        columns: Columns,
        rows: Callable[[], int],
        value: Callable[[str, int], Any] | None = None,
        codes: Callable[[str], tuple[list[str], NDArray[np.int32]]] | None = None,
        parts: Callable[[str], Iterator[pa.ChunkedArray]] | None = None,
    ) -> None:
        self.column_names = list(column_names)
        self._make = columns
        self._rows = rows
        self._value = value
        self._codes, self._parts = codes, parts
        self._made: dict[str, pa.ChunkedArray] = {}
        self._coded: dict[str, tuple[list[str], NDArray[np.int32]]] = {}
        self._found: dict[tuple[str, str], list[int]] = {}

    @cached_property
    def num_rows(self) -> int:
        return self._rows()

    def select(self, names: Sequence[str]) -> pa.Table:
        """Return these columns, computing the missing ones together. Raise `KeyError`."""
        missing = [name for name in names if name not in self._made]
        if unknown := set(missing).difference(self.column_names):
            raise KeyError(min(unknown))
        if missing:
            made = self._make(missing)
            self._made |= {name: made[name] for name in missing}
        return pa.table({name: self._made[name] for name in names})

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        if name not in self._made:
            self.select([name])
        return self._made[name]

    def coded(self, name: str) -> tuple[list[str], NDArray[np.int32]]:
        """Return what the function `coded` does, computed once: questions read the same columns."""
        if name not in self._coded:
            self._coded[name] = self._codes(name) if self._codes is not None else _texts_and_codes(self[name])
        return self._coded[name]

    def rows_with(self, name: str, text: str) -> list[int]:
        """Return the rows with a text in a column, which is read part by part and not kept."""
        if (name, text) not in self._found:
            parts = self._parts(name) if self._parts and name not in self._made else iter([self[name]])
            found, start = list[int](), 0
            for part in parts:
                hits = pc.equal(part, pa.scalar(text, part.type)).to_numpy()
                found += (np.flatnonzero(hits) + start).tolist()
                start += len(part)
            self._found[name, text] = found
        return self._found[name, text]

    def value(self, name: str, row: int) -> Any:
        if self._value is not None and name not in self._made:
            return self._value(name, row)
        return self[name][row].as_py()

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(whole(self).to_pylist())


Table: TypeAlias = pa.Table | LazyTable


def value_of(table: Table, name: str, row: int) -> Any:
    """Return one value of a column."""
    return table.value(name, row) if isinstance(table, LazyTable) else table[name][row].as_py()


def rows_with(table: Table, name: str, text: str) -> list[int]:
    """Return the rows with a text in a column."""
    if isinstance(table, LazyTable):
        return table.rows_with(name, text)
    rows: list[int] = np.flatnonzero(pc.equal(table[name], pa.scalar(text, table[name].type))).tolist()
    return rows


def whole(table: Table) -> pa.Table:
    """Return every column, as an Arrow table."""
    return table.select(table.column_names)


def coded(table: Table, name: str) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct texts of a dictionary column, and int32[rows] that numbers them."""
    return table.coded(name) if isinstance(table, LazyTable) else _texts_and_codes(table[name])


def _texts_and_codes(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    joined = column.combine_chunks()
    return joined.dictionary.to_pylist(), joined.indices.to_numpy()
