"""Serve the URLs of Exec, Attach and PortForward over HTTP on loopback.

A client with an unused ticket upgrades the connection to SPDY/3.1 or to a WebSocket. Everything is bounded:
clients without a ticket, request heads, tickets, sessions, the time to begin, the time without traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import h11

from engine.api.errors import InvalidInput, Refused
from engine.host.connection_limiter import ConnectionLimiter, ConnectionSlot
from engine.runtime.objects.failures import Exhausted
from engine.runtime.objects.records import READY, RUNNING, Sandbox
from engine.runtime.streaming import port_forward, protocol, remote_command
from engine.runtime.streaming.connections import StreamConnection
from engine.runtime.streaming.links import TcpLink, WebSocketLink
from engine.runtime.streaming.protocol import CommandTicket, PortForwardTicket, Ticket
from engine.transport import websocket
from engine.transport.stream_protocols import (
    COMMAND_OVER_SPDY,
    COMMAND_OVER_WEBSOCKET,
    PORT_FORWARD,
    PORT_FORWARD_OVER_WEBSOCKET,
    PORT_FORWARD_TUNNEL,
    V1,
    V4,
)

ADDRESS = "127.0.0.1"
HEAD_TIME = 10.0
MAX_HEAD = 16 * 1024
MAX_SESSIONS = 256
MAX_CONNECTIONS = 128
BACKLOG = 128
ACCEPTED_AT_ONCE = 16
QUIET = 60.0
CLOSE_TIME = 2.0
IDLE_TIME = 4 * 3600.0
KEEP_ALIVE = 10.0
LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Streams(Protocol):
    """Connect to containers. Each method raises a KubengineError or OSError with the reason."""

    async def open_command(self, ticket: CommandTicket) -> remote_command.Process: ...

    async def open_attachment(self, ticket: CommandTicket) -> remote_command.Process: ...

    async def connect(
        self, sandbox: Sandbox, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


class _Rejected(Exception):
    """Carry the answer that a request gets instead of an upgrade."""

    def __init__(self, status: int, reason: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class _Upgrade(NamedTuple):
    """Describe an upgrade: `version` of the protocol inside; `answer` is the headers of the 101."""

    websocket: bool
    version: str
    answer: list[tuple[str, str]]


class StreamingServer:
    """Listen on 127.0.0.1, at `port` or a free one."""

    def __init__(
        self, streams: Streams, *, port: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.port = port
        self._streams = streams
        self._tickets: Tickets[Ticket] = Tickets(clock)
        self._server: asyncio.Server | None = None
        self._clock = clock
        self._limiter = ConnectionLimiter(MAX_CONNECTIONS)
        self._connections: set[asyncio.Task[None]] = set()
        self._sessions = 0
        self._failures = 0
        self._logged_at = -QUIET

    async def start(self) -> None:
        """Start listening. Raise Refused if the port is taken."""
        try:
            listener = socket.create_server((ADDRESS, self.port), backlog=BACKLOG)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit it
        except OSError as error:
            raise Refused(error.strerror or str(error), subject=f"streaming port {self.port}") from None
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=ACCEPTED_AT_ONCE)
        listener.listen(BACKLOG)

    async def stop(self) -> None:
        """Close every session, killing its commands."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def url(self, ticket: Ticket) -> str:
        """Return the one-time URL of `ticket`. Raise Exhausted."""
        return f"http://{ADDRESS}:{self.port}/{_kind(ticket)}/{self._tickets.issue(ticket)}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        slot = self._limiter.enter(writer.transport.abort)
        try:
            if slot is not None:
                await self._handle(reader, writer, slot)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self._log_failure(error)
        finally:
            self._connections.discard(connection)
            if slot is not None:
                slot.release()
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIME):
                    await writer.wait_closed()
            writer.transport.abort()  # the client does not read the rest

    def _log_failure(self, error: Exception) -> None:
        """Log a failure, then suppress further ones for QUIET seconds and count them."""
        self._failures += 1
        if self._clock() - self._logged_at >= QUIET:
            LOG.error("unexpected failure of a streaming session, number %d", self._failures, exc_info=error)
            self._logged_at = self._clock()

    async def _handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slot: ConnectionSlot
    ) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        try:
            async with asyncio.timeout(HEAD_TIME):
                request = await _read_request(http, reader)
            if self._sessions >= MAX_SESSIONS:
                raise _Rejected(503, f"{MAX_SESSIONS} sessions are open")
            ticket = self._redeem(request)
            upgrade = _negotiate(request, ticket)
            if isinstance(ticket, PortForwardTicket) and upgrade.version == V4 and not ticket.ports:
                raise _Rejected(400, "channels of a WebSocket need ports that PortForward was asked for")
        except TimeoutError:
            return
        except h11.RemoteProtocolError as error:
            await _reject(http, writer, _Rejected(400, str(error)))
            return
        except _Rejected as rejection:
            await _reject(http, writer, rejection)
            return
        slot.release()
        self._sessions += 1
        try:
            writer.write(http.send(h11.InformationalResponse(status_code=101, headers=upgrade.answer)) or b"")
            await self._serve(ticket, upgrade, TcpLink(reader, writer, http.trailing_data[0]))
        finally:
            self._sessions -= 1

    def _redeem(self, request: h11.Request) -> Ticket:
        kind, _, token = request.target.decode("ascii").partition("?")[0].strip("/").partition("/")
        if request.method not in (b"GET", b"POST"):
            raise _Rejected(405, "expected GET or POST", [("Allow", "GET, POST")])
        ticket = self._tickets.redeem(token)
        if ticket is None or _kind(ticket) != kind:
            raise _Rejected(404, "unknown, used or expired URL; each is good for one minute and once")
        return ticket

    async def _serve(self, ticket: Ticket, upgrade: _Upgrade, link: TcpLink) -> None:
        connection: StreamConnection
        work: Awaitable[None]
        if isinstance(ticket, CommandTicket):
            expected = ticket.expected(upgrade.version)
            client: remote_command.Client
            if upgrade.websocket:
                client = remote_command.WebSocketClient(link, expected, upgrade.version)
            else:
                client = remote_command.SpdyClient(link, expected)
            connection = client.connection
            work = remote_command.serve(client, ticket, upgrade.version, self._open)
        else:
            sandbox = ticket.sandbox

            async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                if sandbox.state != READY:
                    raise Refused("is no longer ready", subject=f"sandbox {sandbox.id}")
                return await self._streams.connect(sandbox, port)

            forwarder: port_forward.SpdyForwarder | port_forward.WebSocketForwarder
            if upgrade.version == PORT_FORWARD_TUNNEL:
                forwarder = port_forward.SpdyForwarder(WebSocketLink(link), connect)
            elif upgrade.websocket:
                forwarder = port_forward.WebSocketForwarder(link, ticket, connect)
            else:
                forwarder = port_forward.SpdyForwarder(link, connect)
            connection, work = forwarder.connection, forwarder.serve()
        reading = asyncio.ensure_future(connection.run())
        watching = asyncio.ensure_future(_watch(connection))
        try:
            await work
        finally:
            reading.cancel()
            watching.cancel()
            await asyncio.gather(reading, watching, return_exceptions=True)

    async def _open(self, ticket: CommandTicket) -> remote_command.Process:
        if ticket.container.state != RUNNING:
            raise Refused("is no longer running", subject=f"container {ticket.container.id}")
        if ticket.command:
            return await self._streams.open_command(ticket)
        return await self._streams.open_attachment(ticket)


def check_streams(*, stdin: bool, stdout: bool, stderr: bool, tty: bool) -> None:
    """Raise InvalidInput for an invalid combination of streams."""
    if tty and stderr:
        raise InvalidInput("tty and stderr cannot both be true: a terminal has one output", subject="stderr")
    if not (stdin or stdout or stderr):
        raise InvalidInput("one of stdin, stdout and stderr must be set", subject="stdin")


def _kind(ticket: Ticket) -> str:
    if isinstance(ticket, PortForwardTicket):
        return "portforward"
    return "exec" if ticket.command else "attach"


async def _read_request(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
    """Read the head of the connection's only request, which has no body."""
    request: h11.Request | None = None
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(MAX_HEAD)
            if not data and request is None:
                raise ConnectionResetError("the client left before it sent its request")
            http.receive_data(data)
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return request
        else:
            raise _Rejected(400, "expected a request without a body")


def _negotiate(request: h11.Request, ticket: Ticket) -> _Upgrade:
    headers: dict[str, list[str]] = {}
    for name, value in request.headers:
        headers.setdefault(name.decode(), []).extend(
            part.strip() for part in value.decode("latin-1").split(",")
        )
    wanted = {word.lower() for word in headers.get("upgrade", ())}
    if "upgrade" not in {word.lower() for word in headers.get("connection", ())}:
        wanted = set()
    if "websocket" in wanted:
        return _negotiate_websocket(request, headers, ticket)
    if "spdy/3.1" not in wanted:
        raise _Rejected(
            400, "unable to upgrade: expected StreamConnection: Upgrade with SPDY/3.1 or websocket"
        )
    is_command = isinstance(ticket, CommandTicket)
    offered = COMMAND_OVER_SPDY if is_command else (PORT_FORWARD,)
    asked = headers.get("x-stream-protocol-version", [])
    version = protocol.negotiated(asked, offered)
    if asked and version is None:
        raise _no_common_protocol(asked, offered)
    answer = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
    if version is not None:
        answer.append(("X-Stream-Protocol-Version", version))
    return _Upgrade(False, version or (V1 if is_command else PORT_FORWARD), answer)


def _negotiate_websocket(request: h11.Request, headers: dict[str, list[str]], ticket: Ticket) -> _Upgrade:
    key = "".join(headers.get("sec-websocket-key", ()))
    if request.method != b"GET" or not key:
        raise _Rejected(400, "a WebSocket begins with GET and a Sec-WebSocket-Key")
    if headers.get("sec-websocket-version") != ["13"]:
        raise _Rejected(426, "expected WebSocket version 13", [("Sec-WebSocket-Version", "13")])
    is_command = isinstance(ticket, CommandTicket)
    offered = COMMAND_OVER_WEBSOCKET if is_command else PORT_FORWARD_OVER_WEBSOCKET
    asked = headers.get("sec-websocket-protocol", [])
    version = protocol.negotiated(asked, offered)
    if asked and version is None:
        raise _no_common_protocol(asked, offered)
    answer = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Accept", websocket.accept_key(key)),
    ]
    if version is not None:
        answer.append(("Sec-WebSocket-Protocol", version))
    return _Upgrade(True, version or (V1 if is_command else V4), answer)


def _no_common_protocol(asked: Sequence[str], offered: Sequence[str]) -> _Rejected:
    reason = (
        f"unable to negotiate a protocol: client supports {', '.join(asked)}; server {', '.join(offered)}"
    )
    return _Rejected(403, reason, [("X-Accepted-Stream-Protocol-Versions", each) for each in offered])


async def _reject(http: h11.Connection, writer: asyncio.StreamWriter, rejection: _Rejected) -> None:
    body = f"{rejection}\n".encode()
    head = h11.Response(
        status_code=rejection.status,
        headers=[
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *rejection.headers,
        ],
    )
    with contextlib.suppress(ConnectionError, h11.LocalProtocolError):
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        await writer.drain()


async def _watch(connection: StreamConnection) -> None:
    """Detect a client that died silently, and a connection without traffic."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while loop.time() - connection.moved_at < IDLE_TIME:
            await asyncio.sleep(KEEP_ALIVE)
            await connection.keep_alive()
    connection.gone.set()


class Tickets(Generic[T]):
    """Hold at most `limit` unused tickets, each valid once and for `lifetime` seconds by `clock`."""

    def __init__(self, clock: Callable[[], float], *, lifetime: float = 60.0, limit: int = 1000) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._limit = limit
        self._open: dict[str, tuple[float, T]] = {}

    def issue(self, purpose: T) -> str:
        """Issue a ticket. Raise Exhausted if too many are unused."""
        now = self._clock()
        self._open = {token: ticket for token, ticket in self._open.items() if ticket[0] > now}
        if len(self._open) >= self._limit:
            raise Exhausted(f"{self._limit} requests wait for their clients", subject="streaming server")
        token = secrets.token_urlsafe(16)
        self._open[token] = (now + self._lifetime, purpose)
        return token

    def redeem(self, token: str) -> T | None:
        """Return the ticket's purpose; None if it is unknown, used or too old."""
        until, purpose = self._open.pop(token, (0.0, None))
        return purpose if until > self._clock() else None
