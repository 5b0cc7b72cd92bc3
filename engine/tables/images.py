"""ImageTable: what image garbage collection looks at, one row per image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.tables.columns import AMOUNT, TIME
from engine.tables.rows import RowSpace, grown

NEVER: Final = 0.0
"""`last_used` of an image that was never seen in use."""


@dataclass(slots=True)
class ImageColumns:
    """size int64 (bytes), first_detected and last_used float64 (Unix seconds), pinned, in_use, live bool."""

    size: NDArray[np.int64]
    first_detected: NDArray[np.float64]
    last_used: NDArray[np.float64]
    pinned: NDArray[np.bool_]
    in_use: NDArray[np.bool_]
    live: NDArray[np.bool_]

    @classmethod
    def zeros(cls, capacity: int) -> ImageColumns:
        return cls(
            np.zeros(capacity, AMOUNT),
            np.zeros(capacity, TIME),
            np.zeros(capacity, TIME),
            np.zeros(capacity, np.bool_),
            np.zeros(capacity, np.bool_),
            np.zeros(capacity, np.bool_),
        )

    def copy(self) -> ImageColumns:
        return ImageColumns(*(getattr(self, name).copy() for name in _COLUMNS))


_COLUMNS = ("size", "first_detected", "last_used", "pinned", "in_use", "live")


class ImageTable:
    """Images by row and by key (the image id, or `id,handler`). Rows are stable; see `RowSpace`."""

    def __init__(self, capacity: int = 64) -> None:
        self.columns = ImageColumns.zeros(capacity)
        self._rows = RowSpace()
        self.row_of: dict[str, int] = {}
        """Rows by key; to be read."""
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self.row_of)

    def __contains__(self, key: object) -> bool:
        return key in self.row_of

    def add(self, key: str, *, size: int, detected: float, pinned: bool = False) -> int:
        """The row of a new image. Raises `InvalidInput` for a key that is there or a negative size."""
        if key in self.row_of:
            raise InvalidInput("is in the table already", subject=key)
        if not 0 <= size < 1 << 63:
            raise InvalidInput(f"size {size} is not a number of bytes", subject=key)
        row = self._rows.take()
        if row >= len(self.columns.size):
            bigger = ImageColumns.zeros(grown(len(self.columns.size), row + 1))
            for name in _COLUMNS:
                getattr(bigger, name)[:row] = getattr(self.columns, name)
            self.columns = bigger
        if row == len(self._keys):
            self._keys.append(key)
        else:
            self._keys[row] = key
        self.row_of[key] = row
        self.columns.size[row] = size
        self.columns.first_detected[row] = detected
        self.columns.last_used[row] = NEVER
        self.columns.pinned[row] = pinned
        self.columns.live[row] = True
        return row

    def remove(self, key: str) -> int:
        row = self.row(key)
        del self.row_of[key]
        self._keys[row] = ""
        for name in _COLUMNS:
            getattr(self.columns, name)[row] = 0
        self._rows.release(row)
        return row

    def remove_rows(self, rows: Sequence[int]) -> None:
        """Those images have gone: free their rows."""
        keys, row_of = self._keys, self.row_of
        for row in rows:
            del row_of[keys[row]]
            keys[row] = ""
        self._rows.release_many(rows)
        released = np.array(rows, np.intp)
        for name in _COLUMNS:
            getattr(self.columns, name)[released] = 0

    def row(self, key: str) -> int:
        try:
            return self.row_of[key]
        except KeyError:
            raise InvalidInput("no such image in the table", subject=key) from None

    def key(self, row: int) -> str:
        return self._keys[row]

    def keys_at(self, rows: Iterable[int]) -> list[str]:
        keys = self._keys
        return [keys[row] for row in rows]

    def rows(self) -> NDArray[np.intp]:
        """Live rows in ascending order."""
        return np.flatnonzero(self.columns.live[: self._rows.end])
