"""Serve WebSocket clients with a runtime that speaks SPDY (KEP-4006, gate ExtendWebSocketsToKubelet).

An API server of v1.36 forwards the WebSocket of a client to nodes that declare the feature. Runtimes answer
exec and attach over SPDY, so messages of `v5.channel.k8s.io` become streams, and back. A port forward carries
SPDY inside of its messages already, so these are only unwrapped.

`streams` copies bytes between a client and the runtime. Here the client is an object with the same methods,
which translates on the way: `read` returns bytes for the runtime, and `write` takes bytes from it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final, Protocol

from msgspec.structs import replace

from engine.node.logs.container_access import ContainerStreams
from engine.server.http.exchange import Answer, Headers, Request, Takeover
from engine.server.port.websocket_token import SUBPROTOCOLS, subprotocols
from engine.transport import spdy, websocket
from engine.transport.spdy_session import Event, Received, Reset, SpdySession
from engine.transport.stream_protocols import (
    CHANNELS,
    CLOSE_CHANNEL,
    COMMAND_OVER_SPDY,
    PORT_FORWARD_TUNNEL,
    V1,
    V2,
    V4,
    V5,
    internal_error,
    status,
)

GATE: Final = "ExtendWebSocketsToKubelet"
PIECE: Final = 4 * 1024
"""Bytes of a client in one turn of the event loop; a frame may have 6, and costs up to 20 µs."""
MAX_STATUS: Final = 64 * 1024
"""Bytes of the runtime's message about the end of a command."""
CLOSE_SECONDS: Final = 5.0
_OF_WEBSOCKETS: Final = frozenset(("upgrade", "x-stream-protocol-version"))
_VERSION: Final = "x-stream-protocol-version"
_TUNNEL_PREFIX: Final = "SPDY/3.1+"

HandOver = Callable[[Request], Awaitable[Answer]]


def is_translated(request: Request) -> bool:
    """Return whether a WebSocket of exec or attach is in the protocol that is translated."""
    return request.upgrade == "websocket" and V5 in subprotocols(request)


def is_tunnelled(request: Request) -> bool:
    """Return whether the WebSocket of a port forward carries SPDY."""
    return request.upgrade == "websocket" and PORT_FORWARD_TUNNEL in subprotocols(request)


async def translated(request: Request, wanted: ContainerStreams, hand_over: HandOver) -> Answer:
    """Serve exec or attach: the first byte of a message is its channel. `hand_over` asks the runtime."""
    answer = await hand_over(_over_spdy(request, COMMAND_OVER_SPDY))
    if not isinstance(answer, Takeover):
        return answer
    version = dict(_lower(answer.headers)).get(_VERSION, V1)
    return _accepted(
        request,
        V5,
        answer,
        lambda received, reader, writer: Translation(received, reader, writer, wanted, version),
    )


async def tunnelled(request: Request, hand_over: HandOver) -> Answer:
    """Serve a port forward: messages are pieces of a SPDY connection. `hand_over` asks the runtime."""
    answer = await hand_over(_over_spdy(request, (PORT_FORWARD_TUNNEL.removeprefix(_TUNNEL_PREFIX),)))
    return _accepted(request, PORT_FORWARD_TUNNEL, answer, Tunnel) if isinstance(answer, Takeover) else answer


class SessionClient(Protocol):
    """State the interface of a session's client for `streams`."""

    async def read(self, size: int) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def is_closing(self) -> bool: ...
    async def finish(self) -> None: ...


_MakeClient = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], SessionClient]


def _over_spdy(request: Request, versions: tuple[str, ...]) -> Request:
    """Return the request as a SPDY client would have sent it."""
    headers = [
        (name, value)
        for name, value in request.headers
        if not name.startswith("sec-websocket-") and name not in _OF_WEBSOCKETS
    ]
    headers += [("upgrade", "SPDY/3.1"), *((_VERSION, version) for version in versions)]
    return replace(request, method="POST", headers=tuple(headers))


def _accepted(request: Request, subprotocol: str, answer: Takeover, make: _MakeClient) -> Answer:
    """Return the answer to the WebSocket's handshake, and the conversation with the runtime behind it."""

    async def converse(received: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client: Any = make(received, reader, writer)
        try:
            await answer.converse(b"", client, client)
        finally:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.finish()

    headers = (
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", websocket.accept_key(request.header("sec-websocket-key"))),
        (SUBPROTOCOLS, subprotocol),
    )
    return Takeover(headers, converse, answer.close)


def _lower(headers: Headers) -> Headers:
    return tuple((name.lower(), value) for name, value in headers)


class MessageStream:
    """Read and write the messages of a client's WebSocket."""

    def __init__(self, received: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._received = received
        self._reader = reader
        self._writer = writer
        self._framing = websocket.Framing()
        self._closed = False

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the data of each message until the client closes; answer its pings."""
        while data := self._received or await self._reader.read(PIECE):
            self._received = b""
            try:
                for message in self._framing.feed(data):
                    match message.kind:
                        case websocket.TEXT | websocket.BINARY:
                            yield message.data
                        case websocket.PING:
                            self._writer.write(self._framing.pong(message.data))
                        case websocket.CLOSE:
                            self.close()
                            return
            except websocket.WebSocketError as error:
                self.close(error.code, str(error))
                return
            await self._writer.drain()
            # A client that never stops sending must not keep the event loop from others.
            await asyncio.sleep(0)

    def send(self, data: bytes) -> None:
        if not self._closed:
            self._writer.write(self._framing.message(data))

    def close(self, code: int = websocket.NORMAL, reason: str = "") -> None:
        """Send the close frame, once."""
        if not self._closed:
            self._closed = True
            self._writer.write(self._framing.close(code, reason))

    @property
    def closed(self) -> bool:
        return self._closed or self._writer.is_closing()

    async def drain(self) -> None:
        await self._writer.drain()


class Tunnel:
    """Pass on a WebSocket whose messages are pieces of a SPDY connection."""

    def __init__(self, received: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream = MessageStream(received, reader, writer)
        self._messages = self._stream.messages()

    async def read(self, _size: int) -> bytes:
        async for data in self._messages:
            if data:
                return data
        return b""

    def write(self, data: bytes) -> None:
        if data:
            self._stream.send(data)

    async def drain(self) -> None:
        await self._stream.drain()

    def is_closing(self) -> bool:
        return self._stream.closed

    async def finish(self) -> None:
        self._stream.close()
        await self._stream.drain()


def _joined(events: Iterable[Event]) -> Iterator[Event]:
    """Join data of one stream that comes in a row.

    A container that writes single bytes makes a frame of each, and each message costs a TLS record.
    """
    for stream, row in groupby(events, lambda e: e.stream if isinstance(e, Received) and not e.last else 0):
        if stream:
            yield Received(
                stream, b"".join(each.data for each in row if isinstance(each, Received)), last=False
            )
        else:
            yield from row


class Translation:
    """Translate a WebSocket of `v5.channel.k8s.io` into the streams of a SPDY connection.

    The status of the command is sent last, after all of its output, as clients stop reading with it.
    """

    def __init__(
        self,
        received: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wanted: ContainerStreams,
        version: str,
    ) -> None:
        self._stream = MessageStream(received, reader, writer)
        self._version = version
        self._session = SpdySession(client=True)
        self._status = bytearray()
        self._done = False
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        names = ["error"]
        names += [name for name in ("stdin", "stdout", "stderr") if getattr(wanted, name)]
        # Runtimes of v1 and v2 have no stream for the terminal's size.
        if wanted.tty and version not in (V1, V2):
            names.append("resize")
        self._streams = {CHANNELS[name]: self._session.open({"streamtype": [name]}) for name in names}
        self._channels = {stream: channel for channel, stream in self._streams.items()}
        self._unfinished = {
            stream
            for channel, stream in self._streams.items()
            if channel in (CHANNELS["error"], CHANNELS["stdout"], CHANNELS["stderr"])
        }
        self._feeding = asyncio.create_task(self._feed())

    async def read(self, _size: int) -> bytes:
        """Return bytes for the runtime; empty once the client has closed."""
        while True:
            self._changed.clear()
            data = self._session.output()
            self._taken.set()  # also of a message that has nothing for the runtime
            if data:
                return data
            if self._feeding.done() or self._done:
                return b""
            await self._changed.wait()

    def write(self, data: bytes) -> None:
        """Take bytes of the runtime. Malformed ones end the session with an error."""
        try:
            events = self._session.receive(data)
        except spdy.SpdyError as error:
            self._conclude(internal_error(f"malformed SPDY of the runtime: {error}"))
            return
        for event in _joined(events):
            match event:
                case Received(stream, piece, last):
                    self._on_data(stream, piece)
                    # Opens the flow-control window again: a runtime that heeds it stops after 64 KiB without.
                    self._session.consumed(stream, len(piece))
                    if last:
                        self._on_end(stream)
                case Reset(stream):
                    self._on_end(stream)
        self._changed.set()

    async def drain(self) -> None:
        await self._stream.drain()

    def is_closing(self) -> bool:
        return self._done or self._stream.closed

    async def finish(self) -> None:
        """Report a session that the runtime left before the command's end, and stop reading."""
        self._conclude(self._message() if self._status else internal_error("the runtime closed the session"))
        self._feeding.cancel()
        await asyncio.gather(self._feeding, return_exceptions=True)
        await self._stream.drain()

    async def _feed(self) -> None:
        """Translate the client's messages, as fast as the runtime takes them."""
        try:
            async for message in self._stream.messages():
                self._taken.clear()
                self._on_message(message)
                self._changed.set()
                # One message at a time: a client that sends faster than the command reads waits, not this
                # memory.
                await self._taken.wait()
        finally:
            self._changed.set()

    def _on_message(self, message: bytes) -> None:
        channel, data = message[0] if message else -1, message[1:]
        if channel == CLOSE_CHANNEL and data and data[0] in self._streams:
            self._session.send(self._streams[data[0]], b"", last=True)
        elif channel in (CHANNELS["stdin"], CHANNELS["resize"]) and channel in self._streams:
            self._session.send(self._streams[channel], data)

    def _on_data(self, stream: int, data: bytes) -> None:
        channel = self._channels.get(stream)
        if channel == CHANNELS["error"]:
            self._status += data[: MAX_STATUS - len(self._status)]
        elif channel is not None and data:
            self._stream.send(bytes([channel]) + data)

    def _on_end(self, stream: int) -> None:
        self._unfinished.discard(stream)
        if not self._unfinished:
            self._conclude(self._message())

    def _message(self) -> bytes:
        """Return the status as v5 has it; runtimes before v4 send a text, and nothing for success."""
        if self._version == V4 and self._status:
            return bytes(self._status)
        text = self._status.decode(errors="replace")
        return internal_error(text) if text else status({"status": "Success"})

    def _conclude(self, status: bytes) -> None:
        if not self._done:
            self._done = True
            self._stream.send(bytes([CHANNELS["error"]]) + status)
            self._stream.close()
            self._changed.set()
