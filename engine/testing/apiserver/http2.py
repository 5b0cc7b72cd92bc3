"""Serve HTTP/2 with the `h2` library (extra `testing`): one task for each request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

MAX_BODY = 4 << 20


@dataclass(slots=True)
class Http2Request:
    """Hold a request: `path` with its query, header names in lower case, `common_name` of the client's
    certificate.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    common_name: str
    connection: int


class ConnectionGone(Exception):
    """Report that the peer will not receive the answer."""


@dataclass(slots=True)
class _Stream:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    task: asyncio.Task[None] | None = None


Serve = Callable[[Http2Request, "Http2Answer"], Coroutine[Any, Any, None]]


class Http2Answer:
    """Send one request's answer: a head, then the body in pieces; each waits for the peer's window."""

    def __init__(self, connection: ServerConnection, stream: int) -> None:
        self._connection = connection
        self._stream = stream
        self.status = 0
        self._lost = False

    def head(self, status: int, **headers: str) -> None:
        self.status = status
        if self._lost:
            self.drop()
            raise ConnectionGone
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        self._connection.send_head(self._stream, [(":status", str(status)), *named])

    async def send(self, data: bytes, *, end: bool = False) -> None:
        await self._connection.send_body(self._stream, data, end=end)

    def reset(self) -> None:
        self._connection.reset(self._stream)

    def drop(self) -> None:
        self._connection.abort()

    def lose(self) -> None:
        """Break the connection when an answer is sent."""
        self._lost = True

    def freeze(self) -> None:
        self._connection.freeze()

    def go_away(self) -> None:
        self._connection.go_away()


class ServerConnection(asyncio.Protocol):
    """Answer each request with `serve` in its own task, cancelled when the client cancels the request.

    While the connection is open, `open_ones` contains it; a connection whose handshake fails never enters
    it.
    """

    def __init__(
        self, number: int, serve: Serve, *, max_streams: int, open_ones: set[ServerConnection]
    ) -> None:
        self.number = number
        self.lost = asyncio.Event()
        self._serve = serve
        self._max_streams = max_streams
        self._open_ones = open_ones
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        )
        self._streams: dict[int, _Stream] = {}
        self._transport: asyncio.Transport | None = None
        self._frozen = False
        self._window_opened = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._common_name = ""

    # What an answer tells

    def send_head(self, stream: int, headers: list[tuple[str, str]]) -> None:
        self._alive(stream)
        self._h2.send_headers(stream, headers)
        self._flush()

    async def send_body(self, stream: int, data: bytes, *, end: bool) -> None:
        at = 0
        while True:
            await self._writable.wait()
            self._alive(stream)
            sendable = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            piece = data[at : at + max(sendable, 0)]
            if not piece and at < len(data):
                self._window_opened.clear()
                await self._window_opened.wait()
                continue
            at += len(piece)
            last = at == len(data)
            if piece or end:
                self._h2.send_data(stream, piece, end_stream=end and last)
                self._flush()
            if last:
                return

    def reset(self, stream: int) -> None:
        self._alive(stream)
        self._h2.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def freeze(self) -> None:
        self._frozen = True
        if self._transport is not None:
            self._transport.pause_reading()

    def go_away(self) -> None:
        """Send GOAWAY: requests in progress are still answered; h2 itself would send nothing more."""
        if self._transport is not None:
            last = self._h2.highest_inbound_stream_id
            self._transport.write(bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + last.to_bytes(4) + bytes(4))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_ones.add(self)
        certificate = transport.get_extra_info("peercert") or {}
        names = dict(pair for group in certificate.get("subject", ()) for pair in group)
        self._common_name = names.get("commonName", "")
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._max_streams},
        )
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._frozen:
            return
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self._flush()
            self.abort()
            return
        for event in events:
            self._handle(event)
        self._flush()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for stream in list(self._streams):
            self._drop(stream)
        self._open_ones.discard(self)
        self.lost.set()

    # Internals

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                headers = cast("list[tuple[str, str]]", event.headers)
                self._streams[event.stream_id] = _Stream(dict(headers))
            case h2.events.DataReceived():
                stream = self._streams.get(event.stream_id)
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if stream is not None and len(stream.body) <= MAX_BODY:
                    stream.body += event.data
            case h2.events.StreamEnded():
                self._begin(event.stream_id)
            case h2.events.StreamReset():
                self._drop(event.stream_id)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self._window_opened.set()
            case h2.events.ConnectionTerminated():
                if self._transport is not None:
                    self._transport.close()

    def _begin(self, number: int) -> None:
        stream = self._streams[number]
        request = Http2Request(
            stream.headers[":method"],
            stream.headers[":path"],
            {name: value for name, value in stream.headers.items() if not name.startswith(":")},
            bytes(stream.body),
            self._common_name,
            self.number,
        )
        stream.task = asyncio.create_task(self._run(number, request), name=f"{request.method} {request.path}")

    async def _run(self, number: int, request: Http2Request) -> None:
        try:
            await self._serve(request, Http2Answer(self, number))
        except (ConnectionGone, h2.exceptions.ProtocolError):
            pass
        finally:
            self._streams.pop(number, None)

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()

    def _alive(self, stream: int) -> None:
        if self._transport is None or stream not in self._streams:
            raise ConnectionGone

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._frozen:
            self._transport.write(data)


def server_context(certificate: str, key: str, authorities: str) -> ssl.SSLContext:
    """Create a TLS context for HTTP/2 that requests a client certificate but does not require one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["h2"])
    return context
