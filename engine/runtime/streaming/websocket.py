"""WebSocket frames (RFC 6455) of a server, without I/O: bytes to messages and back. No extensions."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, TOO_BIG = 1000, 1002, 1009
MAX_MESSAGE = 1024 * 1024
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(Exception):
    """The peer broke the protocol; `code` is for the close frame."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    """A whole data message, or one control frame. `kind` is its opcode."""

    kind: int
    data: bytes


class MessageReader:
    """Bytes in, messages out; fragments are put together."""

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self._max = max_message
        self._buffer = bytearray()
        self._kind = CONTINUATION
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Every message that is now whole. Raises WebSocketError."""
        self._buffer += data
        while (frame := self._next()) is not None:
            final, kind, payload = frame
            if kind >= CLOSE:
                yield Message(kind, payload)
                continue
            if (kind == CONTINUATION) != (self._kind != CONTINUATION):
                raise WebSocketError("a fragment out of order")
            self._kind = kind or self._kind
            self._parts += payload
            if final:
                yield Message(self._kind, bytes(self._parts))
                self._kind = CONTINUATION
                self._parts.clear()

    def _next(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        final, kind = bool(buffer[0] & 0x80), buffer[0] & 15
        if buffer[0] & 0x70 or kind not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise WebSocketError(f"a frame that starts with {buffer[0]:#04x}")
        if not buffer[1] & 0x80:
            raise WebSocketError("a frame without a mask")
        size, offset = buffer[1] & 127, 2
        if kind >= CLOSE and (size > 125 or not final):
            raise WebSocketError("a control frame that is long or in fragments")
        if size > 125:
            form = "!H" if size == 126 else "!Q"
            if len(buffer) < 2 + struct.calcsize(form):
                return None
            (size,) = struct.unpack_from(form, buffer, 2)
            offset += struct.calcsize(form)
        if size + len(self._parts) > self._max:
            raise WebSocketError(f"a message of more than {self._max} bytes", TOO_BIG)
        if len(buffer) < offset + 4 + size:
            return None
        mask = bytes(buffer[offset : offset + 4])
        payload = unmasked(bytes(buffer[offset + 4 : offset + 4 + size]), mask)
        del buffer[: offset + 4 + size]
        return final, kind, payload


def unmasked(data: bytes, mask: bytes) -> bytes:
    """`data` with the four-byte mask applied, or taken off again."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")


def encode(kind: int, data: bytes) -> bytes:
    """One whole frame from a server."""
    size = len(data)
    if size <= 125:
        head = struct.pack("!BB", 0x80 | kind, size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 127, size)
    return head + data


def close_frame(code: int, reason: str = "") -> bytes:
    return encode(CLOSE, struct.pack("!H", code) + reason.encode()[:120])


def accept_key(key: str) -> str:
    """What proves to the client that it speaks to a WebSocket server."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
