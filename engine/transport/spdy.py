"""Encode and decode SPDY/3.1 frames, without I/O.

From the public SPDY Protocol drafts 3 and 3.1 (dev.chromium.org/spdy). Data frames may be too long to hold,
so the reader returns them piece by piece; control frames and header blocks are bounded. Header blocks share
one compression state per direction, so every one must be read, in order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FLAG_FIN = 1
INITIAL_WINDOW = 7  # the id of a setting
PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM, FLOW_CONTROL_ERROR, STREAM_CLOSED = 1, 2, 3, 7, 9
MAX_CONTROL = 64 * 1024
MAX_HEADERS = 64 * 1024

_HEAD = struct.Struct("!HHI")
_TWO = struct.Struct("!II")

_WORDS = (
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset", "accept-encoding",
    "accept-language", "accept-ranges", "age", "allow", "authorization", "cache-control", "connection",
    "content-base", "content-encoding", "content-language", "content-length", "content-location",
    "content-md5", "content-range", "content-type", "date", "etag", "expect", "expires", "from", "host",
    "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified",
    "location", "max-forwards", "pragma", "proxy-authenticate", "proxy-authorization", "range", "referer",
    "retry-after", "server", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via",
    "warning", "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url",
    "public", "set-cookie", "keep-alive", "origin",
)  # fmt: skip
_LOOSE = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(struct.pack("!I", len(word)) + word.encode() for word in _WORDS) + _LOOSE.encode()
"""The dictionary that both ends' compressors start with (draft 3, section 2.6.10.1)."""

Headers = Mapping[str, Sequence[str]]


class SpdyError(Exception):
    """Report that the peer broke the protocol; the connection cannot continue."""


class SynStream(msgspec.Struct, frozen=True):
    """Open a stream. Header names are lower case."""

    stream: int
    headers: Headers
    last: bool = False


class SynReply(msgspec.Struct, frozen=True):
    stream: int
    headers: Headers
    last: bool = False


class MoreHeaders(msgspec.Struct, frozen=True):
    stream: int
    headers: Headers
    last: bool = False


class Data(msgspec.Struct, frozen=True):
    """Carry a piece of a stream, possibly a part of one frame. `last` closes the sender's half."""

    stream: int
    data: bytes
    last: bool = False


class RstStream(msgspec.Struct, frozen=True):
    stream: int
    status: int


class Settings(msgspec.Struct, frozen=True):
    values: Mapping[int, int]


class Ping(msgspec.Struct, frozen=True):
    number: int


class GoAway(msgspec.Struct, frozen=True):
    last_stream: int
    status: int = 0


class WindowUpdate(msgspec.Struct, frozen=True):
    """Extend a window. Stream 0 is the whole connection."""

    stream: int
    delta: int


Frame = SynStream | SynReply | MoreHeaders | Data | RstStream | Settings | Ping | GoAway | WindowUpdate


class FrameReader:
    """Decode bytes to frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: tuple[int, int, bool] | None = None  # stream, bytes still to come, last
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return every complete frame, and the pieces of an incomplete data frame. Raise SpdyError."""
        self._buffer += data
        while True:
            if self._data is not None:
                stream, left, last = self._data
                # A data frame may have 16 MB: its pieces are passed on as they come, and never collected.
                piece = bytes(self._buffer[:left])
                if left and not piece:
                    return
                del self._buffer[: len(piece)]
                left -= len(piece)
                self._data = (stream, left, last) if left else None
                yield Data(stream, piece, last and not left)
                continue
            if len(self._buffer) < _HEAD.size:
                return
            first, second, rest = _HEAD.unpack_from(self._buffer)
            flags, size = rest >> 24, rest & 0xFFFFFF
            if not first & 0x8000:
                del self._buffer[: _HEAD.size]
                self._data = ((first << 16) | second, size, bool(flags & FLAG_FIN))
                continue
            if first & 0x7FFF != VERSION:
                raise SpdyError(f"version {first & 0x7FFF}, expected {VERSION}")
            if size > MAX_CONTROL:
                raise SpdyError(f"a control frame of {size} bytes, {MAX_CONTROL} at most")
            if len(self._buffer) < _HEAD.size + size:
                return
            payload = bytes(self._buffer[_HEAD.size : _HEAD.size + size])
            del self._buffer[: _HEAD.size + size]
            frame = self._control(second, flags, payload)
            if frame is not None:
                yield frame

    def _control(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        last = bool(flags & FLAG_FIN)
        try:
            if kind == SYN_STREAM:
                stream, _, _ = struct.unpack_from("!IIH", payload)
                # The header block must be decompressed even for a stream that is refused: the peers share one
                # compression state for the whole connection.
                return SynStream(stream & 0x7FFFFFFF, self._headers(payload[10:]), last)
            if kind in (SYN_REPLY, HEADERS):
                (stream,) = struct.unpack_from("!I", payload)
                made = SynReply if kind == SYN_REPLY else MoreHeaders
                return made(stream & 0x7FFFFFFF, self._headers(payload[4:]), last)
            if kind == SETTINGS:
                return Settings(_settings(payload))
            if kind == PING:
                return Ping(*struct.unpack("!I", payload))
            if kind in (RST_STREAM, GOAWAY, WINDOW_UPDATE):
                first, second = _TWO.unpack(payload)
                if kind == WINDOW_UPDATE:
                    return WindowUpdate(first & 0x7FFFFFFF, second & 0x7FFFFFFF)
                return (RstStream if kind == RST_STREAM else GoAway)(first & 0x7FFFFFFF, second)
        except struct.error:
            raise SpdyError(f"a control frame of type {kind} with {len(payload)} bytes") from None
        return None  # a receiver ignores unknown types

    def _headers(self, block: bytes) -> dict[str, list[str]]:
        try:
            plain = self._inflate.decompress(block, MAX_HEADERS + 1)
        except zlib.error as error:
            raise SpdyError(f"header block: {error}") from None
        # One byte more than the limit was asked for, so that a block that expands without end is found after
        # 64 KB.
        if len(plain) > MAX_HEADERS or self._inflate.unconsumed_tail:
            raise SpdyError(f"a header block of more than {MAX_HEADERS} bytes")
        return _parse_headers(plain)


class FrameWriter:
    """Encode frames to bytes."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def encode(self, frame: Frame) -> bytes:
        match frame:
            case Data(stream, data, last):
                return struct.pack("!II", stream, (FLAG_FIN if last else 0) << 24 | len(data)) + data
            case SynStream(stream, headers, last):
                return _frame(SYN_STREAM, struct.pack("!IIH", stream, 0, 0) + self._block(headers), last)
            case SynReply(stream, headers, last):
                return _frame(SYN_REPLY, struct.pack("!I", stream) + self._block(headers), last)
            case MoreHeaders(stream, headers, last):
                return _frame(HEADERS, struct.pack("!I", stream) + self._block(headers), last)
            case RstStream(stream, status):
                return _frame(RST_STREAM, _TWO.pack(stream, status))
            case Settings(values):
                entries = b"".join(_TWO.pack(number, value) for number, value in values.items())
                return _frame(SETTINGS, struct.pack("!I", len(values)) + entries)
            case Ping(number):
                return _frame(PING, struct.pack("!I", number))
            case GoAway(last_stream, status):
                return _frame(GOAWAY, _TWO.pack(last_stream, status))
            case WindowUpdate(stream, delta):
                return _frame(WINDOW_UPDATE, _TWO.pack(stream, delta))

    def _block(self, headers: Headers) -> bytes:
        parts = [struct.pack("!I", len(headers))]
        for name, values in headers.items():
            for text in (name.lower(), "\0".join(values)):
                encoded = text.encode()
                parts += [struct.pack("!I", len(encoded)), encoded]
        return self._deflate.compress(b"".join(parts)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def _frame(kind: int, payload: bytes, last: bool = False) -> bytes:
    return _HEAD.pack(0x8000 | VERSION, kind, (FLAG_FIN if last else 0) << 24 | len(payload)) + payload


def _settings(payload: bytes) -> dict[int, int]:
    (count,) = struct.unpack_from("!I", payload)
    if len(payload) != 4 + 8 * count:
        raise SpdyError(f"{count} settings in {len(payload)} bytes")
    return {number & 0xFFFFFF: value for number, value in _TWO.iter_unpack(payload[4:])}


def _parse_headers(plain: bytes) -> dict[str, list[str]]:
    """Parse a block's names and values; a name occurs once, its values are separated by NUL."""
    offset = 0

    def text() -> str:
        nonlocal offset
        (size,) = struct.unpack_from("!I", plain, offset)
        offset += 4 + size
        if offset > len(plain):
            raise SpdyError("a header block that ends too early")
        return plain[offset - size : offset].decode("utf-8", "replace")

    try:
        (count,) = struct.unpack_from("!I", plain)
        offset = 4
        found: dict[str, list[str]] = {}
        for _ in range(count):
            name = text().lower()
            if name in found:
                raise SpdyError(f"header {name!r} twice")
            found[name] = text().split("\0")
    except struct.error:
        raise SpdyError("a header block that ends too early") from None
    return found
