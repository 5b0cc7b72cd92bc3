"""Many series in Prometheus' text format 0.0.4, exact to the last digit: values are integers with a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ABSENT: Final = -(1 << 63)


class Series(NamedTuple):
    """`values[i] / 10**point` with `labels[i]`. `opening` is a name, `{` and what labels all have; `heading`
    comes before the first line. An `ABSENT` value has no line, and without any line there is no heading.
    `point` is 0 to 18."""

    heading: bytes
    opening: bytes
    labels: Sequence[bytes]
    values: NDArray[np.int64]
    point: int = 0


def exposition(series: Sequence[Series]) -> bytes:
    """The whole text. Raises `ValueError` where labels and values differ in number or the point is out of
    range."""
    text = bytearray()
    for heading, opening, labels, values, point in series:
        if len(labels) != len(values) or not 0 <= point <= 18:
            raise ValueError(f"{opening!r}: {len(labels)} labels, {len(values)} values, point {point}")
        for label, value in zip(labels, values.tolist(), strict=True):
            if value != ABSENT:
                text += b"%b%b%b} %b\n" % (heading, opening, label, _number(value, point))
                heading = b""
    return bytes(text)


def _number(value: int, point: int) -> bytes:
    digits = str(abs(value)).zfill(point + 1)
    whole, part = digits[: len(digits) - point], digits[len(digits) - point :].rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' if part else ''}{part}".encode()
