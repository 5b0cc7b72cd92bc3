"""The memory of columns, which an agent writes row by row without loading NumPy.

A decision that computes with whole columns sees the same memory as arrays.
"""

from __future__ import annotations

from math import prod
from struct import calcsize
from typing import Any, Final

Cells = Any
"""A buffer of one or two dimensions with access by index: from `zeros`, or a given array."""

INT64: Final = "l"
INT32: Final = "i"
UINT8: Final = "B"
FLOAT64: Final = "d"


def zeros(form: str, *shape: int) -> Cells:
    """Create cells that are 0; `form` is one of the constants above, and no number of `shape` is 0."""
    memory: Any = memoryview(bytearray(prod(shape) * calcsize(form)))
    return memory.cast(form, shape)


def take_over(old: Cells, bigger: Cells) -> None:
    """Copy all cells to the same positions of memory that is at least as large in each dimension."""
    # Row by row: a wider matrix has each row at another position.
    known, cells = memoryview(old).tobytes(), bigger.cast("B")
    narrow, wide = old.shape[-1] * old.itemsize, bigger.shape[-1] * bigger.itemsize
    for row in range(len(known) // narrow):
        cells[row * wide : row * wide + narrow] = known[row * narrow : (row + 1) * narrow]
