"""Write Prometheus' text in plain Python; tests compare the kernel with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from engine._fast.writing.exposition import ABSENT, ColumnRows, Series, Values

PIECE: Final = 1 << 17


def exposition(series: Sequence[Series], piece: int = PIECE) -> Iterator[bytes]:
    """Do what `engine._fast.writing.exposition.exposition` does, line by line."""
    for one in series:
        text, ends = one.labels
        count, values = len(ends if one.picked is None else one.picked), taken(one.values)
        if count != len(values) or not 0 <= one.point <= 18:
            raise ValueError(f"{one.opening!r}: {count} labels, {len(values)} values, point {one.point}")
        if one.picked is not None and ((one.picked < 0) | (one.picked >= len(ends))).any():
            raise ValueError(f"{one.opening!r}: a point picks a label that does not exist")
        if (np.diff(ends, prepend=0, append=len(text)) < 0).any():
            raise ValueError(f"{one.opening!r}: the ends of labels must not decrease")
    return _pieces(series, piece)


def _pieces(series: Sequence[Series], piece: int) -> Iterator[bytes]:
    pending = bytearray()
    for heading, opening, (text, ends), values, point, ending, picked in series:
        begins = [0, *ends.tolist()]
        labels = range(len(ends)) if picked is None else picked.tolist()
        for at, value in zip(labels, taken(values), strict=True):
            if value != ABSENT:
                label = text[begins[at] : begins[at + 1]]
                pending += b"%b%b%b} %b%b\n" % (heading, opening, label, number(value, point), ending)
                heading = b""
                if len(pending) >= piece:
                    yield bytes(pending)
                    pending.clear()
    if pending:
        yield bytes(pending)


def taken(values: Values) -> list[int]:
    """Return the numbers that `values` stand for."""
    if not isinstance(values, ColumnRows):
        return list(map(int, values))
    column, rows = values
    if any(row >= len(column) for row in rows):
        raise ValueError(f"a row is not one of {len(column)}")
    return [int(column[row]) if row >= 0 else ABSENT for row in rows]


def number(value: int, point: int) -> bytes:
    """Format `value / 10**point`, without trailing zeros."""
    digits = str(abs(value)).zfill(point + 1)
    whole, part = digits[: len(digits) - point], digits[len(digits) - point :].rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' if part else ''}{part}".encode()
