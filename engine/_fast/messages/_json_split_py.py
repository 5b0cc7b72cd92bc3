"""Finds where JSON objects begin and end in a byte buffer, so that a huge list is read piece by piece.

Only strings and brackets are examined; the decoder checks whether the pieces are valid JSON.
The rule:

* `open_document` skips white space and commas to the next value. An array, or an object with a key `items` at
  its first level whose value is an array, is a list (`ITEMS`, index after its `[`); any other object is
  returned whole (`OBJECT`, index after its `}`).
* `split_items` reads objects inside a list until its `]` (`DONE`), until the buffer ends (`MORE`), until
  `bounds` is full (`FULL`) or until something that isn't an object (`UNEXPECTED`).
* `close_document` reads from inside an object at its first level to its end.

Nesting beyond `max_depth` brackets is `TOO_DEEP`; the index is where the list's object begins, or that of
the bracket. With `MORE`, the index is where reading must begin again once the buffer holds more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MORE, DONE, FULL, TOO_DEEP, UNEXPECTED = 0, 1, 2, 3, 4
OBJECT, ITEMS = 5, 6

_SPACE = b" \n\r\t"


def _skip(data: memoryview, at: int, ignored: bytes) -> int:
    while at < len(data) and data[at] in ignored:
        at += 1
    return at


def _string_end(data: memoryview, at: int) -> int:
    """Return the index after the closing quote of the string whose first character is `at`; -1 if it is cut
    off.
    """
    while at < len(data):
        if data[at] == ord("\\"):
            at += 2
        elif data[at] == ord('"'):
            return at + 1
        else:
            at += 1
    return -1


def _value_end(data: memoryview, at: int, depth: int, max_depth: int) -> tuple[int, int]:
    """Return the index after the bracket that brings `depth` to zero."""
    while at < len(data):
        byte = data[at]
        at += 1
        if byte == ord('"'):
            at = _string_end(data, at)
            if at < 0:
                return MORE, -1
        elif byte in b"{[":
            depth += 1
            if depth > max_depth:
                return TOO_DEEP, at - 1
        elif byte in b"}]":
            depth -= 1
            if depth == 0:
                return DONE, at
    return MORE, -1


def split_items(
    buffer: memoryview | bytes, start: int, bounds: NDArray[np.int64], max_depth: int
) -> tuple[int, int, int]:
    """Return the count of objects found (their `[start, end)` are the first rows of `bounds`),
    index, status.
    """
    data = memoryview(buffer)
    at, count = start, 0
    while at < len(data):
        byte = data[at]
        if byte in _SPACE or byte == ord(","):
            at += 1
        elif byte == ord("{"):
            if count == len(bounds):
                return count, at, FULL
            status, end = _value_end(data, at, 0, max_depth)
            if status != DONE:
                return count, at, status
            bounds[count] = (at, end)
            count += 1
            at = end
        elif byte == ord("]"):
            return count, at + 1, DONE
        else:
            return count, at, UNEXPECTED
    return count, at, MORE


def open_document(buffer: memoryview | bytes, start: int, max_depth: int) -> tuple[int, int, int]:
    """Return the status of the next value, the index where it begins, and the index described for
    each status.
    """
    data = memoryview(buffer)
    at = begin = _skip(data, start, _SPACE + b",")
    if at == len(data):
        return MORE, begin, at
    if data[at] == ord("["):
        return ITEMS, begin, at + 1
    if data[at] != ord("{"):
        return UNEXPECTED, begin, at
    at, depth = at + 1, 1
    while at < len(data):
        byte = data[at]
        at += 1
        if byte == ord('"'):
            end = _string_end(data, at)
            if end < 0:
                return MORE, begin, begin
            if depth == 1 and bytes(data[at:end]) == b'items"':
                after = _skip(data, end, _SPACE + b":")
                if after == len(data):
                    return MORE, begin, begin
                if after > end and data[after] == ord("["):
                    return ITEMS, begin, after + 1
            at = end
        elif byte in b"{[":
            depth += 1
            if depth > max_depth:
                return TOO_DEEP, begin, at - 1
        elif byte in b"}]":
            depth -= 1
            if depth == 0:
                return OBJECT, begin, at
    return MORE, begin, begin


def close_document(buffer: memoryview | bytes, start: int, max_depth: int) -> tuple[int, int]:
    """Return the status and the index after the document's last bracket."""
    status, end = _value_end(memoryview(buffer), start, 1, max_depth)
    return status, start if status == MORE else end
