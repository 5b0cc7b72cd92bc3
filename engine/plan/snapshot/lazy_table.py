"""Provide tables whose columns are computed on first use: most questions need a few columns of many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    a column that is not there yet are computed without it, and with `texts` the texts of some rows. With
    `parts`, a column is searched and numbered part by part: a part fits into the processor's caches, while
    memory for a whole column must first be had. `ahead` begins to read a column in a thread.
    """

    def __init__(
        self,
        column_names: Sequence[str],
        columns: Columns,
        rows: Callable[[], int],
        value: Callable[[str, int], Any] | None = None,
        parts: Callable[[str], Iterator[pa.ChunkedArray]] | None = None,
        texts: Callable[[str, NDArray[np.int64]], pa.Array] | None = None,
        ahead: Callable[[str], None] | None = None,
    ) -> None:
        self.column_names = list(column_names)
        self._make = columns
        self._rows = rows
        self._value = value
        self._parts = parts
        self._texts = texts
        self._ahead = ahead
        self._made: dict[str, pa.ChunkedArray] = {}
        self._coded: dict[str, tuple[list[str], NDArray[np.int32]]] = {}
        self._found: dict[tuple[str, str], list[int]] = {}
        self._filled: dict[str, dict[int, str]] = {}

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

    def parts(self, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield a column part by part; nothing of one that is not there yet is kept."""
        if self._parts is None or name in self._made:
            yield self[name]
        else:
            yield from self._parts(name)

    def coded(self, name: str, more: Sequence[str] = ()) -> tuple[list[str], NDArray[np.int32]]:
        """Return what the function `coded` does, computed once, followed by `more` texts: questions read the
        same columns.
        """
        known = self._coded.get(name)
        if known is None and (self._parts is None or name in self._made):
            known = self._coded[name] = _texts_and_codes(self[name])
        if known is not None and not more:
            return known
        codes = np.empty(self.num_rows + len(more), np.int32)
        mine = codes[: self.num_rows]
        if known is None:
            known = self._coded[name] = _number(self.parts(name), mine), mine
        else:
            mine[:] = known[1]
        number = {text: code for code, text in enumerate(known[0])}
        codes[len(mine) :] = [number.setdefault(text, len(number)) for text in more]
        return list(number), codes

    def filled(self, name: str) -> dict[int, str]:
        """Return the texts of a column that are not empty, by row."""
        if name not in self._filled:
            found, start = dict[int, str](), 0
            for part in self.parts(name):
                texts, codes = _texts_and_codes(part)
                there = np.array([bool(text) for text in texts], bool)
                rows = np.flatnonzero(there[codes]) if there.any() else np.zeros(0, np.int64)
                found |= {start + row: texts[codes[row]] for row in rows.tolist()}
                start += len(part)
            self._filled[name] = found
        return self._filled[name]

    def rows_with(self, name: str, text: str) -> list[int]:
        """Return the rows with a text in a column."""
        if (name, text) not in self._found:
            found, start = list[int](), 0
            for part in self.parts(name):
                hits = pc.equal(part, pa.scalar(text, part.type)).to_numpy()
                found += (np.flatnonzero(hits) + start).tolist()
                start += len(part)
            self._found[name, text] = found
        return self._found[name, text]

    def read_ahead(self, name: str) -> None:
        """Begin to read a column in a thread, while a question does other work; its first use waits for it,
        and raises its errors.
        """
        there = (*self._made, *self._coded, *self._filled)
        if self._ahead is not None and name in self.column_names and name not in there:
            self._ahead(name)

    def texts(self, name: str, rows: NDArray[np.int64]) -> pa.Array:
        """Return the texts of a column in `rows`, as a large string array."""
        if self._texts is not None and name not in self._made:
            return self._texts(name, rows)
        return texts_in_order([self[name].take(pa.array(rows))], np.zeros(len(rows), np.int64))

    def value(self, name: str, row: int) -> Any:
        if self._value is not None and name not in self._made:
            return self._value(name, row)
        return self[name][row].as_py()

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(whole(self).to_pylist())


class LongerTable(LazyTable):
    """Follow the rows of a table by `more`; what that table has computed already is used here, too."""

    def __init__(self, first: Table, more: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(first.column_names, self._columns, lambda: first.num_rows + len(more))
        self._first, self._more = first, more

    def _columns(self, names: Sequence[str]) -> pa.Table:
        part = self._first.select(names)
        more = {
            field.name: column_of([row.get(field.name) for row in self._more], field.type)
            for field in part.schema
        }
        both = pa.concat_tables([part, pa.table(more, part.schema)])
        return both.unify_dictionaries().combine_chunks()

    def coded(self, name: str, more: Sequence[str] = ()) -> tuple[list[str], NDArray[np.int32]]:
        if not more and name not in self._coded:
            self._coded[name] = coded(self._first, name, [row[name] for row in self._more])
        return super().coded(name, more)

    def filled(self, name: str) -> dict[int, str]:
        start = self._first.num_rows
        return filled(self._first, name) | {
            start + place: row[name] for place, row in enumerate(self._more) if row[name]
        }


Table: TypeAlias = pa.Table | LazyTable


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of this type, which may be a dictionary."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def value_of(table: Table, name: str, row: int) -> Any:
    """Return one value of a column."""
    return table.value(name, row) if isinstance(table, LazyTable) else table[name][row].as_py()


def texts_of(table: Table, name: str, rows: NDArray[np.int64]) -> pa.Array:
    """Return the texts of a column in `rows`, as a large string array."""
    return _lazy(table).texts(name, rows)


def texts_in_order(parts: Sequence[pa.ChunkedArray], which: NDArray[np.int64]) -> pa.Array:
    """Return texts, of which `which`, int64[n], names the part of each: it is the next one of that part."""
    chunks = [chunk.cast(pa.large_string()) for part in parts for chunk in part.chunks]
    place = np.empty(len(which), np.int64)
    place[np.argsort(which, kind="stable")] = np.arange(len(which))
    return pa.concat_arrays(chunks).take(pa.array(place)) if chunks else pa.array([], pa.large_string())


def rows_with(table: Table, name: str, text: str) -> list[int]:
    """Return the rows with a text in a column."""
    return _lazy(table).rows_with(name, text)


def whole(table: Table) -> pa.Table:
    """Return every column, as an Arrow table."""
    return table.select(table.column_names)


def coded(table: Table, name: str, more: Sequence[str] = ()) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct texts of a dictionary column, and int32[rows] that numbers them; both also for
    `more` texts that follow those of the column.
    """
    return _lazy(table).coded(name, more)


def parts_of(table: Table, name: str) -> Iterator[pa.ChunkedArray]:
    """Yield a column part by part; nothing of one that is not there yet is kept."""
    return _lazy(table).parts(name)


def read_ahead(table: Table, *names: str) -> None:
    """Begin to read columns in a thread, in this order, if the table reads its columns on first use."""
    if isinstance(table, LazyTable):
        for name in names:
            table.read_ahead(name)


def filled(table: Table, name: str) -> dict[int, str]:
    """Return the texts of a dictionary column that are not empty, by row; none if the column is missing."""
    if name not in table.column_names:
        return {}
    return _lazy(table).filled(name)


def _lazy(table: Table) -> LazyTable:
    """Return the table itself if it is lazy, else one that reads its columns."""
    if isinstance(table, LazyTable):
        return table
    return LazyTable(table.column_names, table.select, lambda: table.num_rows)


def _number(parts: Iterator[pa.ChunkedArray], codes: NDArray[np.int32]) -> list[str]:
    """Number the texts of a dictionary column, in the order in which parts name them; return them."""
    number: dict[str, int] = {}
    shared, start = np.empty(0, np.int32), 0
    last, as_is = None, False
    for part in parts:
        joined = part.combine_chunks()
        own, mine = joined.indices.to_numpy(), codes[start : start + len(joined)]
        # Each part of a file that we wrote has the same dictionary.
        if last is None or not joined.dictionary.equals(last):
            last, texts = joined.dictionary, joined.dictionary.to_pylist()
            # A dictionary may hold a text twice.
            new = dict.fromkeys(text for text in texts if text not in number)
            number.update(zip(new, itertools.count(len(number))))
            shared = np.fromiter(map(number.__getitem__, texts), np.int32, len(texts))
            as_is = np.array_equal(shared, np.arange(len(shared)))
        if as_is:
            mine[:] = own
        else:
            shared.take(own, out=mine, mode="clip")
        start += len(own)
    return list(number)


def _texts_and_codes(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    joined = column.combine_chunks()
    return joined.dictionary.to_pylist(), joined.indices.to_numpy()
