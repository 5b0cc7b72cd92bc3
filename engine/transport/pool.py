"""Manages the connections to one server: opened when a request finds no capacity, dropped when lost."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from traceback import clear_frames

import msgspec

from engine.api.errors import Unavailable
from engine.transport.http2 import Exchange, Headers, Http2Connection, NotBegun

CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 32
TRIES = 3


class Server(msgspec.Struct, frozen=True):
    """Hold the address of a server. `name` is the name that its certificate must have, `proxy` the
    (host, port) of an HTTP proxy.
    """

    host: str
    port: int
    name: str = ""
    proxy: tuple[str, int] | None = None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Http2Pool:
    """Send requests to one server over as many connections as its limit of streams requires.

    `context` makes the TLS context of a new connection; `reset` closes connections that were made with older
    credentials. There is a connection per `MAX_STREAMS` exchanges, `MAX_CONNECTIONS` at most.
    """

    def __init__(self, server: Server, context: Callable[[], ssl.SSLContext]) -> None:
        self.server = server
        self._context = context
        self._connections: list[Http2Connection] = []
        self._opening = asyncio.Lock()

    async def request(self, method: str, path: str, headers: Headers, body: bytes = b"") -> Exchange:
        """Send a request and return its exchange after the response headers. The caller sets the deadline.

        Requests that the server has not begun are sent again on another connection. Raises Unavailable.
        """
        # A server that restarts may refuse on several connections in a row (GOAWAY); more tries would keep
        # asking a server that refuses everything.
        for _ in range(TRIES - 1):
            connection = self._with_free_stream() or await self._open()
            with contextlib.suppress(NotBegun):
                return await connection.request(method, path, headers, self.server.authority, body)
        connection = self._with_free_stream() or await self._open()
        return await connection.request(method, path, headers, self.server.authority, body)

    def reset(self) -> None:
        """Close every connection; requests in progress fail, and their callers retry."""
        for connection in list(self._connections):
            connection.close()

    close = reset

    def _with_free_stream(self) -> Http2Connection | None:
        return next((c for c in self._connections if c.free_streams > 0), None)

    async def _open(self) -> Http2Connection:
        async with self._opening:
            # Another request may have opened a connection while this one waited for the lock.
            known = self._with_free_stream()
            if known is not None:
                return known
            if len(self._connections) >= MAX_CONNECTIONS:
                raise Unavailable(
                    f"{MAX_CONNECTIONS} connections have no free stream", subject=self.server.authority
                )
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    connection = await self._connect()
            except TimeoutError:
                raise Unavailable(
                    f"no connection within {CONNECT_SECONDS:g} s", subject=self.server.authority
                ) from None
            except ssl.SSLError as error:
                # OpenSSL's reason is the same for an unknown authority, another name and a wrong clock.
                reason = getattr(error, "verify_message", "") or error.reason or error
                raise Unavailable(f"TLS: {reason}", subject=self.server.authority) from error
            except OSError as error:
                raise Unavailable(error.strerror or str(error), subject=self.server.authority) from error
            self._connections.append(connection)
            return connection

    async def _connect(self) -> Http2Connection:
        """Connect, and clear the frames of a failure.

        They and their exception form a cycle that holds OpenSSL's memory. The garbage collector does not
        know how large that is, and would find it late.
        """
        try:
            return await self._greeted()
        except BaseException as error:
            clear_frames(error.__traceback__)
            raise

    async def _greeted(self) -> Http2Connection:
        server, context = self.server, self._context()
        loop = asyncio.get_running_loop()
        name = server.name or server.host
        transport: asyncio.Transport | None
        if server.proxy is None:
            transport, protocol = await loop.create_connection(
                self._make, server.host, server.port, ssl=context, server_hostname=name
            )
        else:
            raw, waiting = await loop.create_connection(lambda: _Tunnel(server.authority), *server.proxy)
            try:
                await waiting.opened
                protocol = self._make()
                transport = await loop.start_tls(raw, protocol, context, server_hostname=name)
            except BaseException:
                raw.close()
                raise
            if transport is None:
                raise Unavailable("the proxy closed the tunnel", subject=server.authority)
            # `start_tls` does not call it: the protocol is given to an existing transport.
            protocol.connection_made(transport)
        # A server without `h2` in its ALPN answers in HTTP/1, which this connection would read as a
        # violation.
        spoken = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if spoken != "h2":
            transport.close()
            raise Unavailable(f"the server speaks {spoken or 'HTTP/1'}, not HTTP/2", subject=server.authority)
        try:
            await protocol.wait_until_ready()
        except BaseException:
            transport.abort()
            raise
        return protocol

    def _make(self) -> Http2Connection:
        return Http2Connection(self.server.authority, self._lost)

    def _lost(self, connection: Http2Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class _Tunnel(asyncio.Protocol):
    """Ask an HTTP proxy for a tunnel (CONNECT)."""

    def __init__(self, authority: str) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._authority = authority
        self._answer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = f"CONNECT {self._authority} HTTP/1.1\r\nHost: {self._authority}\r\n\r\n"
        assert isinstance(transport, asyncio.Transport)
        transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self.opened.done():
            return
        if b"\r\n\r\n" in self._answer:
            status = bytes(self._answer).split(b" ", 2)[1:2]
            # Only a CONNECT that was accepted turns the connection into a tunnel; a proxy's error page must
            # not be read as TLS.
            if status == [b"200"]:
                self.opened.set_result(None)
            else:
                line = bytes(self._answer).split(b"\r\n")[0].decode("latin-1")
                self.opened.set_exception(
                    Unavailable(f"the proxy answered {line!r}", subject=self._authority)
                )
        elif len(self._answer) > 8192:
            self.opened.set_exception(Unavailable("the proxy's answer is too long", subject=self._authority))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(Unavailable("the proxy closed the tunnel", subject=self._authority))
