"""Write many series in Prometheus' text format 0.0.4, exact to the last digit: values are integers with a
point.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from engine._fast.writing._exposition_c import exposition

__all__ = ["ABSENT", "ColumnRows", "Numbers", "Series", "Texts", "Values", "exposition", "joined"]

ABSENT: Final = -(1 << 63)

Numbers: TypeAlias = "array[int] | memoryview[int]"
"""Integers of 64 bits, of a column of a table also with others between them."""


class ColumnRows(NamedTuple):
    """Pick the numbers of a column at `rows`; a negative row has none, `ABSENT`."""

    column: Numbers
    rows: array[int]


Values: TypeAlias = "Numbers | ColumnRows"


class Texts(NamedTuple):
    """Hold many short texts as one: each ends at its place in `ends`, where the next begins."""

    text: bytes
    ends: array[int]


class Series(NamedTuple):
    """Write `values[i] / 10**point` with the i-th of `labels`, or, where they are `picked`, with the one of
    that place.

    `opening` is a name, `{` and what all labels have; `heading` comes before the first line. An `ABSENT`
    value has no line, and without any line there is no heading. `point` is 0 to 18; `ending` comes after the
    value: a blank and a time, or nothing.
    """

    heading: bytes
    opening: bytes
    labels: Texts
    values: Values
    point: int = 0
    ending: bytes = b""
    picked: array[int] | None = None


def joined(pieces: Sequence[bytes]) -> Texts:
    """Join the texts of a list, in its order."""
    return Texts(b"".join(pieces), array("q", accumulate(map(len, pieces))))
