"""Hold recorded use: one row per series (a measure of one container or node), one column per moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.plan.history.codes import MISSING, Codes, decode

INDEX: Final = pa.schema(
    [
        ("measure", pa.dictionary(pa.int32(), pa.string())),
        ("node", pa.dictionary(pa.int32(), pa.string())),
        ("namespace", pa.dictionary(pa.int32(), pa.string())),
        ("pod", pa.dictionary(pa.int32(), pa.string())),
        ("container", pa.dictionary(pa.int32(), pa.string())),
    ]
)
"""What a series measures. A node's series has empty texts for namespace, pod and container."""
Key = tuple[str, str, str, str, str]
"""(measure, node, namespace, pod, container)"""
BLOCK: Final = 8192
"""Series in a block of memory, so that reading more series never copies the ones that are there."""


@dataclass(frozen=True)
class Times:
    """Hold the moments of a history: `count` of them from `start` (Unix seconds), `step` seconds apart."""

    start: int
    step: int
    count: int

    @property
    def end(self) -> int:
        return self.start + (self.count - 1) * self.step

    def text(self, index: int) -> str:
        """Return a moment as people write it, in UTC."""
        return datetime.fromtimestamp(self.start + index * self.step, UTC).strftime("%a %d %b %H:%M UTC")

    @property
    def days(self) -> float:
        return self.count * self.step / 86_400


@dataclass(frozen=True)
class History:
    """Hold series in `blocks` of codes (uint16[series of the block, moments]); `index` has a row for each,
    in the order of node, namespace, pod and container, and `place` its number in the blocks.

    A value of a moment describes the step before it: the largest memory, the mean CPU.
    """

    times: Times
    index: pa.Table
    blocks: Sequence[Codes]
    place: NDArray[np.int64]
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.index.num_rows)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(block) for block in self.blocks)])

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        """Return uint16[rows, moments]."""
        found = np.full((len(rows), self.times.count), MISSING, np.uint16)
        place = self.place[rows]
        block = np.searchsorted(self._starts, place, "right") - 1
        for number in np.unique(block).tolist():
            mine = block == number
            found[mine] = self.blocks[number][place[mine] - self._starts[number]]
        return found

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return float32[rows, moments] in the measure's unit, NaN where a value is missing."""
        return decode(self.codes(rows))

    def rows(self, measure: str) -> NDArray[np.int64]:
        """Return the rows of one measure."""
        column = self.index["measure"].combine_chunks()
        names = column.dictionary.to_pylist()
        if measure not in names:
            return np.zeros(0, np.int64)
        return np.flatnonzero(column.indices.to_numpy() == names.index(measure))

    def texts(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """Return an index column as int32[series] and the texts that it numbers."""
        column = self.index[name].combine_chunks()
        return column.indices.to_numpy(), column.dictionary.to_pylist()


class HistoryBuilder:
    """Collect series whose values arrive piece by piece. A second value for one moment keeps the larger."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self._rows: dict[Key, int] = {}
        self._blocks: list[Codes] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def measures(self) -> set[str]:
        return {key[0] for key in self._rows}

    def row(self, key: Key) -> Codes:
        """Return the values of a series, uint16[moments], to be changed."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._rows)
            if row // BLOCK == len(self._blocks):
                self._blocks.append(np.full((BLOCK, self.times.count), MISSING, np.uint16))
        values: Codes = self._blocks[row // BLOCK][row % BLOCK]
        return values

    def add(self, key: Key, at: NDArray[np.int64], codes: Codes) -> int:
        """Add values at these moments; return how many of these had a value already."""
        row = self.row(key)
        met = int((row[at] != MISSING).sum())
        np.maximum.at(row, at, codes)
        return met

    def history(self, meta: dict[str, Any]) -> History:
        """Return the series. More values added to the builder afterwards would change them."""
        keys = sorted(self._rows, key=lambda key: (*key[1:], key[0]))
        columns = list(zip(*keys, strict=True)) or [()] * len(INDEX)
        index = pa.table(
            {
                field.name: pa.array(texts, pa.string()).dictionary_encode()
                for field, texts in zip(INDEX, columns, strict=True)
            },
            INDEX,
        )
        place = np.array([self._rows[key] for key in keys], np.int64)
        return History(self.times, index, self._blocks, place, meta)
