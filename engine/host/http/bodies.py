"""Reads the body of an HTTP answer within a size."""

from __future__ import annotations

from http.client import IncompleteRead
from typing import Protocol

_PIECE = 1 << 20


class Body(Protocol):
    """Describe an answer of `http.client` or `urllib`; `length` is None if the head of the answer does not
    state it.
    """

    @property
    def length(self) -> int | None: ...

    def read1(self, size: int, /) -> bytes: ...


def read_body(body: Body, most: int) -> bytes:
    """Return the body, or one byte more than `most` of a longer one.

    Raise `IncompleteRead` if the connection ends early, and what `read1` raises.
    """
    expected = body.length
    whole = most + 1 if expected is None else min(expected, most + 1)
    data = bytearray()
    while len(data) < whole:
        piece = body.read1(min(_PIECE, whole - len(data)))
        if not piece:
            if expected is None:
                break
            raise IncompleteRead(bytes(data), expected - len(data))
        data += piece
    return bytes(data)
