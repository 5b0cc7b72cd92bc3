"""Run a server's end of a WebSocket (RFC 6455) without I/O: bytes to messages and back, framed by `wsproto`.

`wsproto` is imported for the first client that needs it, so that start-up does not pay for it. No
extensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from wsproto.extensions import Extension
    from wsproto.frame_protocol import Frame, FrameProtocol

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, TOO_BIG = 1000, 1009
MAX_MESSAGE = 1024 * 1024
MAX_REASON = 120


class WebSocketError(Exception):
    """Report that the peer broke the protocol; `code` is for the close frame."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Message(msgspec.Struct, frozen=True):
    """Hold a whole data message, or one control frame. `kind` is its opcode; the data of CLOSE is dropped."""

    kind: int
    data: bytes


class Framing:
    """Frame one connection both ways; fragments are joined, up to `max_message` bytes."""

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        from wsproto.frame_protocol import FrameProtocol, ParseFailed

        self._frames = FrameProtocol(client=False, extensions=[_limit_of_frames(max_message)])
        self._failure = ParseFailed
        self._max = max_message
        self._too_big = f"a message of more than {max_message} bytes"
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Return every complete message. Raise WebSocketError."""
        self._frames.receive_bytes(data)
        try:
            for frame in self._frames.received_frames():
                yield from self._take(frame)
        except self._failure as error:
            text = self._too_big if error.code == TOO_BIG else str(error)
            raise WebSocketError(text, int(error.code)) from None

    def message(self, data: bytes) -> bytes:
        """Encode a whole binary message."""
        return bytes(self._frames.send_data(data))

    def ping(self) -> bytes:
        return bytes(self._frames.ping())

    def pong(self, data: bytes) -> bytes:
        return bytes(self._frames.pong(data))

    def close(self, code: int, reason: str) -> bytes:
        return bytes(self._frames.close(code, reason[:MAX_REASON]))

    def _take(self, frame: Frame) -> Iterator[Message]:
        kind = int(frame.opcode)
        payload = frame.payload.encode() if isinstance(frame.payload, str) else frame.payload
        # `wsproto` parses the payload of CLOSE into code and reason; neither matters here.
        if isinstance(payload, tuple):
            yield Message(kind, b"")
        # Control frames may come between the fragments of a message (RFC 6455, section 5.4).
        elif kind >= CLOSE:
            yield Message(kind, bytes(payload))
        else:
            self._parts += payload
            if len(self._parts) > self._max:
                raise WebSocketError(self._too_big, TOO_BIG)
            if frame.message_finished:
                whole = bytes(self._parts)
                self._parts.clear()
                yield Message(kind, whole)


def _limit_of_frames(most: int) -> Extension:
    """Refuse a frame that is too long as soon as its header says so."""
    from wsproto.extensions import Extension
    from wsproto.frame_protocol import CloseReason, FrameDecoder, Opcode, RsvBits

    class Limit(Extension):
        def enabled(self) -> bool:
            return True

        def offer(self) -> bool:
            return False

        def frame_inbound_header(
            self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
        ) -> CloseReason | RsvBits:
            return CloseReason.MESSAGE_TOO_BIG if payload_length > most else RsvBits(False, False, False)

    return Limit()


def accept_key(key: str) -> str:
    """Return the key that proves to the client that it is connected to a WebSocket server."""
    from wsproto.utilities import generate_accept_token

    return generate_accept_token(key.encode()).decode()
