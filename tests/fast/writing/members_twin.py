"""Write JSON of many objects in plain Python; tests compare the kernel with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine._fast.writing.exposition import ABSENT, Texts
from engine._fast.writing.members import CLOSE, MOMENT, OPEN, MemberStep
from tests.fast.writing.exposition_twin import PIECE, number, taken

MOST_STEPS: Final = 128
LAST_SECOND: Final = 253402300799


def filled(
    texts: Texts,
    forms: Sequence[Sequence[MemberStep]],
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    piece: int = PIECE,
) -> Iterator[bytes]:
    """Do what `engine._fast.writing.members.filled` does, object by object."""
    forms = [
        [step._replace(values=None if step.values is None else taken(step.values)) for step in steps]
        for steps in forms
    ]
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
