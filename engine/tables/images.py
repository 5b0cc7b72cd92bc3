"""ImageTable: what image garbage collection reads, one row per image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.tables.cells import FLOAT64, INT64, UINT8, Cells, take_over, zeros
from engine.tables.rows import RowSpace, grown

NEVER: Final = 0.0
"""`last_used` of an image that was never seen in use."""


class ImageColumns(msgspec.Struct):
    """Hold size int64 (bytes), first_detected and last_used float64 (Unix seconds), pinned, in_use, live
    bool.
    """

    size: NDArray[np.int64]
    first_detected: NDArray[np.float64]
    last_used: NDArray[np.float64]
    pinned: NDArray[np.bool_]
    in_use: NDArray[np.bool_]
    live: NDArray[np.bool_]


_NUMBERS: Final = {"size": INT64, "first_detected": FLOAT64, "last_used": FLOAT64}
_FORMS: Final = _NUMBERS | dict.fromkeys(("pinned", "in_use", "live"), UINT8)


class ImageCells(msgspec.Struct):
    """Hold the memory of `ImageColumns`, to be read and written cell by cell; rows that are not live keep
    their last values.
    """

    size: Cells
    first_detected: Cells
    last_used: Cells
    pinned: Cells
    in_use: Cells
    live: Cells

    @classmethod
    def zeros(cls, capacity: int) -> ImageCells:
        """Return empty columns for at least one row."""
        return cls(*(zeros(form, max(capacity, 1)) for form in _FORMS.values()))

    def resized(self, capacity: int) -> ImageCells:
        """Return a copy with space for more rows, never fewer."""
        bigger = ImageCells.zeros(capacity)
        for name in _FORMS:
            take_over(getattr(self, name), getattr(bigger, name))
        return bigger

    def copy(self) -> ImageCells:
        return self.resized(len(self.size))

    def columns(self) -> ImageColumns:
        """Return the same memory as arrays."""
        numbers = (np.asarray(cells) for cells in (self.size, self.first_detected, self.last_used))
        flags = (np.asarray(cells).view(np.bool_) for cells in (self.pinned, self.in_use, self.live))
        return ImageColumns(*numbers, *flags)


class ImageTable:
    """Hold images by row and by key (the image id, or `id,handler`). Rows are stable; see `RowSpace`.

    `cells` are replaced when the table grows, and `columns`, the same memory as arrays, with them.
    """

    def __init__(self, capacity: int = 64) -> None:
        self.cells = ImageCells.zeros(capacity)
        self._rows = RowSpace()
        self.row_of: dict[str, int] = {}
        """Rows by key; to be read."""
        self._keys: list[str] = []

    @property
    def columns(self) -> ImageColumns:
        return self.cells.columns()

    def __len__(self) -> int:
        return len(self.row_of)

    def __contains__(self, key: object) -> bool:
        return key in self.row_of

    def add(self, key: str, *, size: int, detected: float, pinned: bool = False) -> int:
        """Add an image and return its row. Raise `InvalidInput` for a known key or a negative size."""
        if key in self.row_of:
            raise InvalidInput("is in the table already", subject=key)
        if not 0 <= size < 1 << 63:
            raise InvalidInput(f"size {size} is not a number of bytes", subject=key)
        row = self._rows.take()
        if row >= len(self.cells.size):
            self.cells = self.cells.resized(grown(len(self.cells.size), row + 1))
        if row == len(self._keys):
            self._keys.append(key)
        else:
            self._keys[row] = key
        self.row_of[key] = row
        self.cells.size[row] = size
        self.cells.first_detected[row] = detected
        self.cells.last_used[row] = NEVER
        self.cells.pinned[row] = pinned
        self.cells.in_use[row] = False
        self.cells.live[row] = True
        return row

    def remove(self, key: str) -> int:
        row = self.row(key)
        del self.row_of[key]
        self._keys[row] = ""
        self.cells.live[row] = False
        self._rows.release(row)
        return row

    def remove_rows(self, rows: Sequence[int]) -> None:
        """Free the rows of removed images."""
        keys, row_of, live = self._keys, self.row_of, self.cells.live
        for row in rows:
            del row_of[keys[row]]
            keys[row] = ""
            live[row] = False
        self._rows.release_many(rows)

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
        """Return live rows in ascending order."""
        return np.flatnonzero(self.columns.live[: self._rows.end])
