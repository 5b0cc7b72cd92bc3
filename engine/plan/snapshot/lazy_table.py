"""A table of which a column is made when it is first asked for: most questions need a few columns of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

Columns = Callable[[Sequence[str]], pa.Table]
"""Makes these columns of a table."""


class LazyTable:
    """What a `pa.Table` is asked for its columns; `whole` makes one of it for all else.

    Whoever asks gets what is wrong with a column, not who opened the table.
    """

    def __init__(self, column_names: Sequence[str], columns: Columns, rows: Callable[[], int]) -> None:
        self.column_names = list(column_names)
        self._make = columns
        self._rows = rows
        self._made: dict[str, pa.ChunkedArray] = {}

    @cached_property
    def num_rows(self) -> int:
        return self._rows()

    def select(self, names: Sequence[str]) -> pa.Table:
        """These columns, of which those that are not there yet are made together. Raises `KeyError`."""
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

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(whole(self).to_pylist())


Table: TypeAlias = pa.Table | LazyTable


def whole(table: Table) -> pa.Table:
    """Every column, as an Arrow table."""
    return table.select(table.column_names)
