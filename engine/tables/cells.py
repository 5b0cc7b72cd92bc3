"""The memory of columns, as an agent keeps and writes it row by row: NumPy is loaded for none of this. A
decision that computes with whole columns sees the same memory as arrays."""

from __future__ import annotations

from math import prod
from struct import calcsize
from typing import Any, Final

Cells = Any
"""A buffer of one or two dimensions whose cells are read and written by their place: of `zeros`, or an array
that was given."""

INT64: Final = "l"
INT32: Final = "i"
UINT8: Final = "B"
FLOAT64: Final = "d"


def zeros(form: str, *shape: int) -> Cells:
    """Cells that are 0; `form` is one of the above, no number of `shape` is 0."""
    memory: Any = memoryview(bytearray(prod(shape) * calcsize(form)))
    return memory.cast(form, shape)


def take_over(old: Cells, bigger: Cells) -> None:
    """Copy all cells to the same places of memory that is at least as large in each dimension."""
    known, cells = memoryview(old).tobytes(), bigger.cast("B")
    narrow, wide = old.shape[-1] * old.itemsize, bigger.shape[-1] * bigger.itemsize
    for row in range(len(known) // narrow):
        cells[row * wide : row * wide + narrow] = known[row * narrow : (row + 1) * narrow]
