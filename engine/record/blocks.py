"""Encode rows of a record as blocks of columns, and decode them. Pure.

A block is `KREC`, the length of its body, the body's CRC-32 (both little endian, 32 bits) and the body: a
MessagePack map of columns, compressed with zlib. Texts are indices into the block's own list of distinct
texts, and times are differences in milliseconds, so that a block can be read without any other. Measured
values are differences to the row before with the same keys, as little-endian 64-bit integers. A block that is
torn or damaged is recognized by its length or checksum.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final

import msgspec

from engine.api.encoding.json_text import json_encoder

MAGIC: Final = b"KREC"
_HEAD: Final = struct.Struct("<4sII")
_LEVEL: Final = 6
MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest body that is read; a larger length means damage."""
_MOST_DECODED: Final = 4 * MOST_BYTES
"""The most bytes of a body after decompression: 20,000 rows with inputs of 10 KB have fewer."""
_LATEST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, after which a time cannot be written."""


MALFORMED: Final = (msgspec.DecodeError, ValueError, IndexError, RecursionError, zlib.error)
"""How a block fails that has a right checksum but was not written by `encode_block`."""

_encode = json_encoder(str)
_decode_inputs = msgspec.json.Decoder(dict[str, Any]).decode


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """Record one thing that happened at `time` (Unix seconds, to the millisecond).

    `stream` is decision, event, pod, node, use, pressure, restart, images, or record for what the recorder
    says about itself; of a shadow also runtime (an event of the runtime), judged and observation.
    `name` says what happened (`eviction evicted`, an event's reason), `text` why, in words. `pod` is
    `namespace/name`, empty for the node. `inputs` is ready for JSON. A row with `values` is a measurement;
    its text then lists the keys that the values belong to, separated by spaces.
    """

    time: float
    stream: str
    name: str
    text: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    inputs: Mapping[str, Any] = {}
    values: Sequence[int] = ()


_TEXTS: Final = ("stream", "name", "text", "pod", "uid", "container")


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class BlockBody(msgspec.Struct, array_like=True):
    """Hold the columns of a block: texts and inputs are indices of `texts`; `lengths` is empty without
    values.
    """

    texts: list[str]
    times: list[int]
    columns: list[list[_Natural]]
    lengths: list[_Natural] = []
    values: bytes = b""


def encode_block(rows: Sequence[RecordRow]) -> bytes:
    """Return the block of some rows, at least one."""
    index: dict[str, int] = {}
    columns = [[index.setdefault(getattr(row, name), len(index)) for row in rows] for name in _TEXTS]
    inputs = [_json(row.inputs) for row in rows]
    columns.append([index.setdefault(text, len(index)) for text in inputs])
    times = [round(row.time * 1000) for row in rows]
    times = [times[0], *(after - before for before, after in pairwise(times))]
    lengths, values = _differences(rows)
    body = BlockBody(list(index), times, columns, lengths, values)
    data = zlib.compress(msgspec.msgpack.encode(body), _LEVEL)
    return _HEAD.pack(MAGIC, len(data), zlib.crc32(data)) + data


def _differences(rows: Sequence[RecordRow]) -> tuple[list[int], bytes]:
    """Return the number of values of each row, if any row has some, and the differences of all of them."""
    found = array("q")
    before: dict[tuple[str, str, str], Sequence[int]] = {}
    for row in rows:
        if row.values:
            last = before.get(key := (row.stream, row.name, row.text))
            found.extend(
                row.values
                if last is None or len(last) != len(row.values)
                else [_wrapped(value - earlier) for value, earlier in zip(row.values, last, strict=True)]
            )
            before[key] = row.values
    if sys.byteorder == "big":
        found.byteswap()
    return ([len(row.values) for row in rows] if found else []), found.tobytes()


def decode_blocks(data: bytes) -> Iterator[list[RecordRow]]:
    """Yield the rows of each whole block. Raise `TornRecord` at the first byte that belongs to none."""
    for at, body in whole_blocks(data):
        try:
            rows = [row for _, row in rows_of_body(body)]
        except MALFORMED:
            raise TornRecord(at, len(data) - at) from None
        yield rows


def whole_blocks(data: bytes) -> Iterator[tuple[int, BlockBody]]:
    """Yield the position and the body of each whole block. Raise `TornRecord` at the first byte that belongs
    to none.
    """
    at = 0
    while at < len(data):
        head = data[at : at + _HEAD.size]
        if len(head) < _HEAD.size:
            raise TornRecord(at, len(data) - at)
        magic, length, checksum = _HEAD.unpack(head)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if magic != MAGIC or length > MOST_BYTES or len(body) < length or zlib.crc32(body) != checksum:
            raise TornRecord(at, len(data) - at)
        try:
            decoded = _decoded(body)
        except MALFORMED:
            raise TornRecord(at, len(data) - at) from None
        yield at, decoded
        at += _HEAD.size + length


class TornRecord(ValueError):
    """Raised if a record does not continue with a whole block; `size` bytes from `at` on are not read."""

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size
        super().__init__(f"{size} bytes from byte {at} on are not a whole block")


def _decoded(body: bytes) -> BlockBody:
    """Decode a body, and check that its columns belong together. Raise one of `MALFORMED`."""
    inflated = zlib.decompressobj()
    decoded = msgspec.msgpack.decode(inflated.decompress(body, _MOST_DECODED), type=BlockBody)
    rows, lengths = len(decoded.times), decoded.lengths
    if len(decoded.columns) != len(_TEXTS) + 1 or any(len(column) != rows for column in decoded.columns):
        raise ValueError("columns of different lengths")
    if any(max(column, default=0) >= len(decoded.texts) for column in decoded.columns if column):
        raise ValueError("an index beyond the texts")
    if (lengths and len(lengths) != rows) or sum(lengths) * 8 != len(decoded.values):
        raise ValueError("values that belong to no row")
    times = list(accumulate(decoded.times))
    if times and not 0 <= min(times) <= max(times) <= _LATEST:
        raise ValueError("a time out of range")
    return decoded


def rows_of_body(body: BlockBody, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, RecordRow]]:
    """Yield rows of a block with their places in it: all of them, or those at the wanted places, which must
    be all that have a stream, name and text, or none.
    """
    texts, lengths = body.texts, body.lengths
    differences = _Differences(body) if lengths else None
    times = list(accumulate(body.times))
    places = range(len(times)) if wanted is None else wanted
    # Column by column: a step of the interpreter for each row and column would cost three times as much.
    picked = ([column[place] for place in places] for column in body.columns)
    for place, stream, name, text, pod, uid, container, written in zip(places, *picked, strict=True):
        values: Sequence[int] = ()
        if differences is not None and lengths[place]:
            values = differences.add(place, (stream, name, text))
        yield (
            place,
            RecordRow(
                time=times[place] / 1000,
                stream=texts[stream],
                name=texts[name],
                text=texts[text],
                pod=texts[pod],
                uid=texts[uid],
                container=texts[container],
                inputs=_decode_inputs(texts[written]) if texts[written] else {},
                values=values,
            ),
        )


def _wrapped(value: int) -> int:
    """Return the 64-bit integer that a sum or difference of two becomes, so that each has one."""
    return (value + 2**63) % 2**64 - 2**63


class _Differences:
    """Add up the values of a block's rows, which must be taken in order."""

    def __init__(self, body: BlockBody) -> None:
        self._values = array("q")
        self._values.frombytes(body.values)
        if sys.byteorder == "big":
            self._values.byteswap()
        self._ends = list(accumulate(body.lengths))
        self._before: dict[tuple[int, ...], Sequence[int]] = {}

    def add(self, place: int, key: tuple[int, ...]) -> Sequence[int]:
        begin = self._ends[place - 1] if place else 0
        read = self._values[begin : self._ends[place]].tolist()
        last = self._before.get(key)
        if read and last is not None and len(last) == len(read):
            read = [_wrapped(value + earlier) for value, earlier in zip(read, last, strict=True)]
        if read:
            self._before[key] = read
        return tuple(read)


def _json(inputs: Mapping[str, Any]) -> str:
    return _encode(inputs).decode() if inputs else ""
