"""Write many series in Prometheus' text format 0.0.4, exact to the last digit: values are integers with a
point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine._fast.writing._exposition_c import exposition

__all__ = ["ABSENT", "Series", "Texts", "exposition", "joined"]

ABSENT: Final = -(1 << 63)


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
