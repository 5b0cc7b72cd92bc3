"""Write numbers into the objects of a JSON text in which only numbers change: exact, as integers
with a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine._fast.writing._exposition_py import ABSENT, PIECE, Texts, number

OPEN: Final = -1
CLOSE: Final = -2
MOMENT: Final = -3
MOST_STEPS: Final = 128
LAST_SECOND: Final = 253402300799


class MemberStep(NamedTuple):
    """A number `values[row] / 10**form` under a name, `text` being `"name":`, for a form of 0 to 18.

    `OPEN` begins an object, `text` being `"name":{` or what else it begins with, and `CLOSE` ends it. It is
    there only with a number in it: a `MOMENT`, Unix seconds shown as RFC 3339 from 1970 to 9999, is none, and
    an `ABSENT` value is not there."""

    text: bytes
    values: NDArray[np.int64] | None
    form: int


def filled(
    texts: Texts,
    forms: Sequence[Sequence[MemberStep]],
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    piece: int = PIECE,
) -> Iterator[bytes]:
    """Return the text in pieces of `piece` bytes or a little more, the last perhaps shorter.

    The text is each of `texts`, followed by the members of its form (-1 for none) with the values of its
    row. A comma precedes a member unless a brace does.

    Raises `ValueError` where columns differ in length, the ends of texts decrease, a form or row is
    asked for that is not there, or a form is no sequence of objects that are opened and closed.
    """
    text, ends = texts
    if not len(ends) == len(which) == len(rows):
        raise ValueError(f"{len(ends)} texts, {len(which)} forms, {len(rows)} rows")
    if (np.diff(ends, prepend=0, append=len(text)) < 0).any():
        raise ValueError("the ends of texts must not decrease")
    if ((which < -1) | (which >= len(forms))).any():
        raise ValueError("a row names a form that does not exist")
    for at, steps in enumerate(forms):
        asked, most = rows[which == at], _rows(steps)
        if ((asked < 0) | (asked >= most)).any():
            raise ValueError(f"form {at} has {most} rows, and others are asked for")
    return _pieces(texts, forms, which.tolist(), rows.tolist(), piece)


def _rows(steps: Sequence[MemberStep]) -> int:
    """Return how many rows a form has."""
    most, depth = (1 << 63) - 1, 0
    for _, values, form in steps:
        depth += (form == OPEN) - (form == CLOSE)
        if depth < 0 or not MOMENT <= form <= 18 or (values is None) != (form in (OPEN, CLOSE)):
            raise ValueError("not a form")
        if values is not None:
            most = min(most, len(values))
    if depth or len(steps) > MOST_STEPS:
        raise ValueError(f"a form of {len(steps)} steps that leaves {depth} objects open")
    return most


def _pieces(
    texts: Texts, forms: Sequence[Sequence[MemberStep]], which: Sequence[int], rows: Sequence[int], piece: int
) -> Iterator[bytes]:
    out = bytearray()
    begin = 0
    for end, form, row in zip(texts.ends.tolist(), which, rows, strict=True):
        members = texts.text[begin:end]
        begin = end
        out += members if form < 0 else _members(members, forms[form], row)
        if len(out) >= piece:
            yield bytes(out)
            out.clear()
    if out:
        yield bytes(out)


def _members(text: bytes, steps: Sequence[MemberStep], row: int) -> bytes:
    pending: list[tuple[bytes, bool]] = []
    for name, values, form in steps:
        if form == OPEN:
            pending.append((name, True))
        elif form == CLOSE:
            if any(opens for _, opens in pending):
                while not pending.pop()[1]:
                    pass
            else:
                text = _written(text, pending) + b"}"
                pending.clear()
        elif values is not None and (value := int(values[row])) != ABSENT:
            if form == MOMENT:
                pending.append((name + _moment(value), False))
            else:
                text = _written(text, [*pending, (name + number(value, form), False)])
                pending.clear()
    return _written(text, pending)


def _written(text: bytes, members: Sequence[tuple[bytes, bool]]) -> bytes:
    for member, _ in members:
        text += member if not text or text.endswith(b"{") else b"," + member
    return text


def _moment(second: int) -> bytes:
    held = datetime.fromtimestamp(max(0, min(second, LAST_SECOND)), UTC)
    return held.strftime('"%Y-%m-%dT%H:%M:%SZ"').encode()
