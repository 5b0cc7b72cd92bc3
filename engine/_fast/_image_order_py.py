"""Which images go, in which order, and which rows a list of names marks: the rules, for reading."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def order_and_cut(
    primary: NDArray[np.float64],
    secondary: NDArray[np.float64],
    size: NDArray[np.int64],
    eligible: NDArray[np.bool_],
    target: int,
) -> tuple[NDArray[np.int64], int]:
    """The eligible rows by (`primary`, `secondary`, row), cut after the first one with which the sum of
    their sizes reaches `target`; and that sum.

    A target of zero or less still takes one row; one out of reach takes all. Keys must not be NaN.
    """
    rows = sorted(np.flatnonzero(eligible).tolist(), key=lambda row: (primary[row], secondary[row], row))
    chosen: list[int] = []
    freed = 0
    for row in rows:
        chosen.append(row)
        freed = min(freed + int(size[row]), 2**63 - 1)
        if freed >= target:
            break
    return np.array(chosen, np.int64), freed


def mark(index: dict[str, int], names: list[str], marks: NDArray[np.bool_]) -> list[int]:
    """Set `marks[index[name]]` for each of `names`; returns the positions of names not in `index`."""
    unknown = []
    for position, name in enumerate(names):
        row = index.get(name)
        if row is None:
            unknown.append(position)
        else:
            marks[row] = True
    return unknown
