"""Split JSON of any size into objects, in bounded memory.

Accepts one `List` (however large), several documents one after another, NDJSON, a bare array, or a single
object. Memory is one read chunk plus one object; an object larger than `MAX_OBJECT` or nested deeper than
`MAX_DEPTH` is a fault and never reaches the decoder.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator

import numpy as np

from engine._fast.messages.json_split import (
    DONE,
    FULL,
    ITEMS,
    MORE,
    OBJECT,
    TOO_DEEP,
    close_document,
    open_document,
    split_items,
)
from engine.plan.reading.read_ahead import Readable, ReadAhead
from engine.plan.snapshot.faults import FaultLog

MAX_OBJECT = 32 * 1024 * 1024
MAX_DEPTH = 128
MAX_FOUND = 65536
_ANY_DEPTH = 2**62

Piece = tuple[memoryview, bool]
"""The bytes of one object, and whether it was an item of a list. Valid until the next piece is taken."""


class JSONStream:
    """Iterate over the objects of one stream.

    `position` is the number of bytes read. Unreadable data is a fault of `origin`, and ends the stream;
    everything before it has been delivered.
    """

    def __init__(self, stream: Readable, origin: str, faults: FaultLog) -> None:
        self._stream = stream
        self._origin = origin
        self._faults = faults
        self._buffer = b""
        self._at = 0
        self._consumed = 0
        self._ended = False
        self._bounds = np.empty((MAX_FOUND, 2), np.int64)
        self.position = 0
        self.objects = 0

    def __iter__(self) -> Iterator[Piece]:
        with ReadAhead(self._stream) as self._chunks:
            yield from self._documents()

    def _documents(self) -> Iterator[Piece]:
        while True:
            status, begin, at = open_document(self._buffer, self._at, MAX_DEPTH)
            if status == MORE:
                if begin == len(self._buffer):
                    self._at = begin
                    if not self._more():
                        return
                elif not self._grow(begin, "is cut off inside an object"):
                    return
            elif status == OBJECT:
                self._at = at
                self.objects += 1
                yield memoryview(self._buffer)[begin:at], False
            elif status == ITEMS:
                closes = self._buffer[begin] == ord("{")
                self._at = at
                if not (yield from self._items()) or (closes and not self._close()):
                    return
            elif status == TOO_DEEP:
                self._fault(at, f"is nested deeper than {MAX_DEPTH} levels")
                return
            else:
                self._fault(at, f"is not JSON: expected an object, found {self._excerpt(at)}")
                return

    def _items(self) -> Generator[Piece, None, bool]:
        """Yield the objects of a list; the generator returns false if the stream ended within it."""
        while True:
            count, at, status = split_items(self._buffer, self._at, self._bounds, MAX_DEPTH)
            view = memoryview(self._buffer)
            for begin, end in self._bounds[:count].tolist():
                yield view[begin:end], True
            self.objects += count
            self._at = at
            if status == DONE:
                return True
            if status == MORE:
                if not self._grow(at, "is cut off inside a list"):
                    return False
            elif status == TOO_DEEP:
                if not self._skip_deep():
                    return False
            elif status != FULL:
                self._fault(at, f"is not a list of objects: found {self._excerpt(at)}")
                return False

    def _skip_deep(self) -> bool:
        while True:
            count, at, status = split_items(self._buffer, self._at, self._bounds[:1], _ANY_DEPTH)
            if count:
                self._fault(self._at, f"object {self.objects} is nested deeper than {MAX_DEPTH} levels")
                self.objects += 1
                self._at = int(self._bounds[0, 1])
                return True
            if status != MORE or not self._grow(at, "is cut off inside an object"):
                return False

    def _close(self) -> bool:
        while True:
            status, at = close_document(self._buffer, self._at, MAX_DEPTH)
            if status == DONE:
                self._at = at
                return True
            if status == TOO_DEEP:
                self._fault(at, f"is nested deeper than {MAX_DEPTH} levels")
                return False
            if not self._grow(self._at, "is cut off before its last bracket"):
                return False

    def _grow(self, begin: int, cut_off: str) -> bool:
        """Read more, keeping the buffer from `begin`; a fault if there is no more or too much."""
        self._at = begin
        if len(self._buffer) - begin > MAX_OBJECT:
            self._fault(begin, f"holds an object larger than {MAX_OBJECT} bytes")
            return False
        if not self._more():
            self._fault(len(self._buffer), cut_off)
            return False
        return True

    def _more(self) -> bool:
        if self._ended:
            return False
        kept = self._buffer[self._at :]
        self._consumed += self._at
        try:
            data = self._chunks.read()
            # Doubling the buffer makes a large object cost linear time.
            while data and len(data) < len(kept) and (more := self._chunks.read()):
                data += more
        except (EOFError, OSError, zlib.error) as error:
            self._fault(len(self._buffer), f"reading failed: {error}")
            data = b""
        self._ended = not data
        self._buffer = kept + data if kept else data
        self._at = 0
        self.position += len(data)
        return bool(data)

    def _fault(self, at: int, problem: str) -> None:
        self._faults.add(self._origin, "", f"byte {self._consumed + at}", problem)

    def _excerpt(self, at: int) -> str:
        return repr(self._buffer[at : at + 20].decode("utf-8", "replace"))
