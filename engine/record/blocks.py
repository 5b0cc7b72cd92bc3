"""Encode rows of a record as blocks of columns, and decode them. Pure.

A block is `KREC`, the length of its body, the body's CRC-32 (both little endian, 32 bits) and the body: a
MessagePack map of columns, compressed with zlib. Texts are indices into the block's own list of distinct
texts, and times are differences in milliseconds, so that a block can be read without any other. A block that
is torn or damaged is recognized by its length or checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
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


_MALFORMED: Final = (msgspec.DecodeError, ValueError, IndexError, RecursionError, zlib.error)
"""How a block fails that has a right checksum but was not written by `encode_block`."""

_encode = json_encoder(str)


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened at `time` (Unix seconds, to the millisecond).

    `stream` is decision, event, pod, use, pressure, or record for what the recorder says about itself.
    `name` says what happened (`eviction evicted`, an event's reason), `text` why, in words. `pod` is
    `namespace/name`, empty for the node. `inputs` is ready for JSON.
    """

    time: float
    stream: str
    name: str
    text: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    inputs: Mapping[str, Any] = {}


_TEXTS: Final = ("stream", "name", "text", "pod", "uid", "container")


class _Body(msgspec.Struct, array_like=True):
    texts: list[str]
    times: list[int]
    columns: list[list[Annotated[int, msgspec.Meta(ge=0)]]]


def encode_block(rows: Sequence[RecordRow]) -> bytes:
    """Return the block of some rows, at least one."""
    index: dict[str, int] = {}
    columns = [[index.setdefault(getattr(row, name), len(index)) for row in rows] for name in _TEXTS]
    inputs = [_json(row.inputs) for row in rows]
    columns.append([index.setdefault(text, len(index)) for text in inputs])
    times = [round(row.time * 1000) for row in rows]
    times = [times[0], *(after - before for before, after in pairwise(times))]
    body = zlib.compress(msgspec.msgpack.encode(_Body(list(index), times, columns)), _LEVEL)
    return _HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def decode_blocks(data: bytes) -> Iterator[list[RecordRow]]:
    """Yield the rows of each whole block. Raise `TornRecord` at the first byte that belongs to none."""
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
            rows = list(_rows(body))
        except _MALFORMED:
            raise TornRecord(at, len(data) - at) from None
        yield rows
        at += _HEAD.size + length


class TornRecord(ValueError):
    """Raised if a record does not continue with a whole block; `size` bytes from `at` on are not read."""

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size
        super().__init__(f"{size} bytes from byte {at} on are not a whole block")


def _rows(body: bytes) -> Iterator[RecordRow]:
    inflated = zlib.decompressobj()
    decoded = msgspec.msgpack.decode(inflated.decompress(body, _MOST_DECODED), type=_Body)
    texts, at = decoded.texts, 0
    *columns, inputs = decoded.columns
    for place, step in enumerate(decoded.times):
        at += step
        if not 0 <= at <= _LATEST:
            raise ValueError("a time out of range")
        values = {name: texts[column[place]] for name, column in zip(_TEXTS, columns, strict=True)}
        given = msgspec.json.decode(texts[inputs[place]] or "{}", type=dict[str, Any])
        yield RecordRow(time=at / 1000, inputs=given, **values)


def _json(inputs: Mapping[str, Any]) -> str:
    return _encode(inputs).decode() if inputs else ""
