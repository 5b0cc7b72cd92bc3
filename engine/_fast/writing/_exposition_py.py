"""Write many series in Prometheus' text format 0.0.4, exact to the last digit: values are integers with a
point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ABSENT: Final = -(1 << 63)
PIECE: Final = 1 << 17


class Texts(NamedTuple):
    """Hold many short texts as one: each ends at its place in `ends`, where the next begins."""

    text: bytes
    ends: NDArray[np.int64]


class Series(NamedTuple):
    """`values[i] / 10**point` with the i-th of `labels`, or, where they are `picked`, the one of that place.

    `opening` is a name, `{` and what labels all have; `heading` comes before the first line. An `ABSENT`
    value has no line, and without any line there is no heading. `point` is 0 to 18; `ending` comes after the
    value: a blank and a time, or nothing."""

    heading: bytes
    opening: bytes
    labels: Texts
    values: NDArray[np.int64]
    point: int = 0
    ending: bytes = b""
    picked: NDArray[np.int64] | None = None


def joined(pieces: Sequence[bytes]) -> Texts:
    """Join the texts of a list, in its order."""
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return Texts(b"".join(pieces), np.cumsum(lengths))


def exposition(series: Sequence[Series], piece: int = PIECE) -> Iterator[bytes]:
    """Yield the text in pieces of whole lines, each of `piece` bytes or a little more; the last may be
    shorter.

    Raise `ValueError` if labels and values differ in number, labels do not end one after another, a picked
    label is out of range, or the point is out of range.
    """
    for one in series:
        text, ends = one.labels
        count = len(ends if one.picked is None else one.picked)
        if count != len(one.values) or not 0 <= one.point <= 18:
            raise ValueError(f"{one.opening!r}: {count} labels, {len(one.values)} values, point {one.point}")
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
        for at, value in zip(labels, values.tolist(), strict=True):
            if value != ABSENT:
                label = text[begins[at] : begins[at + 1]]
                pending += b"%b%b%b} %b%b\n" % (heading, opening, label, number(value, point), ending)
                heading = b""
                if len(pending) >= piece:
                    yield bytes(pending)
                    pending.clear()
    if pending:
        yield bytes(pending)


def number(value: int, point: int) -> bytes:
    """Format `value / 10**point`, without trailing zeros."""
    digits = str(abs(value)).zfill(point + 1)
    whole, part = digits[: len(digits) - point], digits[len(digits) - point :].rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' if part else ''}{part}".encode()
