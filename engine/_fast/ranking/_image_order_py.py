"""State the rules of which images are removed in which order, and which rows a list of names marks.

Columns are buffers with a row per image: sizes int64 (bytes), times float64 (Unix seconds, 0: never), flags
one byte.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Column: TypeAlias = Any
Marks: TypeAlias = Any
"""Writable flags."""

LARGEST = 2**63 - 1
"""Sums and targets are clamped here."""


def spare(
    live: Column,
    in_use: Column,
    pinned: Column,
    last_used: Column,
    first_detected: Column,
    now: float,
    min_age: float,
) -> bytearray:
    """Flag the live rows that are neither in use nor pinned, were last used before `now`, and have been known
    for `min_age` seconds.
    """
    rows = zip(live, in_use, pinned, last_used, first_detected, strict=True)
    return bytearray(
        bool(here and not busy and not kept and used < now and now - detected >= min_age)
        for here, busy, kept, used, detected in rows
    )


def disused(
    live: Column, in_use: Column, pinned: Column, last_used: Column, now: float, max_age: float
) -> bytearray:
    """Flag the live rows that are neither in use nor pinned, and were never used, or not for `max_age`
    seconds.
    """
    rows = zip(live, in_use, pinned, last_used, strict=True)
    return bytearray(
        bool(here and not busy and not kept and (used == 0 or now - used > max_age))
        for here, busy, kept, used in rows
    )


def order_and_cut(
    primary: Column, secondary: Column, size: Column, eligible: Column, target: int
) -> tuple[list[int], int]:
    """Return the eligible rows by (`primary`, `secondary`, row), cut after the first one with which the sum
    of their sizes reaches `target`; and that sum.

    A target of zero or less still takes one row; one out of reach takes all. Keys must not be NaN.
    """
    rows = sorted(
        (row for row, flag in enumerate(eligible) if flag),
        key=lambda row: (primary[row], secondary[row], row),
    )
    chosen: list[int] = []
    freed = 0
    for row in rows:
        chosen.append(row)
        freed = min(freed + int(size[row]), LARGEST)
        if freed >= min(target, LARGEST):
            break
    return chosen, freed


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
