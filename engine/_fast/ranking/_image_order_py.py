"""State the rules of which images are removed in which order, and which rows a list of names marks."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Marks: TypeAlias = "bytearray | memoryview | NDArray[np.bool_]"

LARGEST = 2**63 - 1
"""Sums and targets are clamped here."""


def order_and_cut(
    primary: NDArray[np.float64],
    secondary: NDArray[np.float64],
    size: NDArray[np.int64],
    eligible: NDArray[np.bool_],
    target: int,
) -> tuple[NDArray[np.int64], int]:
    """Return the eligible rows by (`primary`, `secondary`, row), cut after the first one with which the sum
    of their sizes reaches `target`; and that sum.

    A target of zero or less still takes one row; one out of reach takes all. Keys must not be NaN.
    """
    rows = sorted(np.flatnonzero(eligible).tolist(), key=lambda row: (primary[row], secondary[row], row))
    chosen: list[int] = []
    freed = 0
    for row in rows:
        chosen.append(row)
        freed = min(freed + int(size[row]), LARGEST)
        if freed >= min(target, LARGEST):
            break
    return np.array(chosen, np.int64), freed


def match(
    index: dict[str, int],
    names: list[str],
    items: list[Any],
    known: list[Any],
    marks: Marks,
) -> list[int]:
    """Mark the row of each of `names`; return the positions that need examination: the name is not in
    `index`, or its item is a different object from `known[row]`.
    """
    changed = []
    for position, name in enumerate(names):
        row = index.get(name)
        if row is not None:
            marks[row] = True
        if row is None or known[row] is not items[position]:
            changed.append(position)
    return changed


def mark(index: dict[str, int], names: list[str], marks: Marks) -> list[str]:
    """Set `marks[index[name]]` for each of `names`; return those that are not in `index`."""
    strangers = []
    for name in names:
        row = index.get(name)
        if row is not None:
            marks[row] = True
        else:
            strangers.append(name)
    return strangers
