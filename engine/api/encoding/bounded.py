"""Reads the body of an HTTP answer within a size and a time, whatever pace its server sends at."""

from __future__ import annotations

import time
from collections.abc import Callable
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


def read_within(body: Body, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> bytes:
    """Return the body, or one byte more than `most` of a longer one.

    A socket's time-out covers one read only, and so a server that sends a byte now and then could keep its
    reader for ever. Raise `TimeoutError` after `seconds`, `IncompleteRead` if the connection ends early, and
    what `read1` raises.
    """
    end, expected = clock() + seconds, body.length
    whole = most + 1 if expected is None else min(expected, most + 1)
    data = bytearray()
    while len(data) < whole:
        piece = body.read1(min(_PIECE, whole - len(data)))
        if not piece:
            if expected is None:
                break
            raise IncompleteRead(bytes(data), expected - len(data))
        data += piece
        if clock() > end:
            raise TimeoutError(f"the body did not end within {seconds:g} s")
    return bytes(data)
