"""The client side of HTTP/2 over TLS: requests with headers and a body that is read at its own pace.

`connection` keeps the streams; this file moves the bytes of asyncio's transport (TLS over `ssl.MemoryBIO`).
The window of received data is returned to the server only when its reader has taken it, so at most `WINDOW`
bytes wait for a slow reader, which does not delay the others. A connection that stays silent is pinged after
`PING_AFTER` seconds and closed if nothing comes back within `PING_WAIT` (as client-go does).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import cast

from engine._fast.http2.client import ClientConnection, encode
from engine.api.errors import Refused, Unavailable
from engine.transport.connection import PIECE, Arrivals, Fields, MultiplexedConnection, Stream

WINDOW = 256 * 1024
MAX_STREAMS = 100
CONNECTION_WINDOW = MAX_STREAMS * WINDOW
MAX_HEADERS = 64 * 1024
PING_AFTER = 30.0
PING_WAIT = 15.0
_SECRET = frozenset((b"authorization",))

Headers = Iterable[tuple[str, str]]


class NotBegun(Unavailable):
    """Raised if the server says that it has not begun with the request, which may be sent again."""


class Exchange(Stream):
    """Hold the answer to one request. `status` and `headers` (lower case) are present; the body comes as it
    is read.

    The caller closes it (`async with`): an answer that is not read to its end is reset.
    """

    def __init__(self, peer: str, head: bytes = b"", body: bytes = b"") -> None:
        super().__init__(head, body)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._peer = peer
        self._body: Arrivals[bytes] = Arrivals()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the rest of the answer."""
        unread = sum(map(len, self._body.items))
        self._body.items.clear()
        self._body.end()
        if self.connection is not None:
            self.connection.release(self)
            # Otherwise the connection's window, which all its streams share, would shrink with every answer
            # that is left unread.
            self._release_window(unread)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, about PIECE bytes in a turn of the event loop.

        Raises Unavailable when it breaks off.
        """
        while True:
            while self._body.items:
                data = self._piece()
                self._release_window(len(data))
                yield data
                await asyncio.sleep(0)
            if self._body.is_over():
                return
            await self._body.wait()

    def _piece(self) -> bytes:
        waiting = self._body.items
        first = waiting.popleft()
        if not waiting or len(first) >= PIECE:
            return first
        piece = bytearray(first)
        while waiting and len(piece) < PIECE:
            piece += waiting.popleft()
        return bytes(piece)

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises Refused when it is longer than `limit` bytes."""
        body = bytearray()
        async for data in self.chunks():
            body += data
            if len(body) > limit:
                raise Refused(f"the response is longer than {limit} bytes", subject=self._peer)
        return bytes(body)

    async def wait_for_head(self) -> None:
        """Return once status and headers are there. Raises Unavailable when the answer ends before."""
        while not self.status:
            if self._body.is_over():
                raise Unavailable("the response ended before its headers", subject=self._peer)
            await self._body.wait()

    def fields(self, fields: Fields) -> None:
        """Take the response's status and headers, ignoring interim responses (1xx) and trailers."""
        # Fields after the head are trailers, which the API server does not use.
        if self.status:
            return
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields}
        status = known.pop(":status", "")
        if not status.isascii() or not status.isdigit() or len(status) != 3:
            self.fail("the response has no status")
        elif not status.startswith("1"):
            self.status, self.headers = int(status), known
            self._body.wake()

    def data(self, data: bytes) -> None:
        self._body.items.append(data)
        self._body.wake()

    def end(self) -> None:
        self._body.end()

    def fail(self, why: str, code: int | None = None) -> None:
        self._body.end(Unavailable(why, subject=self._peer))

    def not_begun(self, why: str) -> None:
        self._body.end(NotBegun(why, subject=self._peer))

    def _release_window(self, size: int) -> None:
        """Return the part of the connection's window that the body held; needed after its end, too."""
        if self.connection is not None:
            self.connection.take(self, size)
            self.connection.flush()


class Http2Connection(MultiplexedConnection, asyncio.Protocol):
    """Speak HTTP/2 on a connection from its first byte (TLS with ALPN `h2`, or prior knowledge).

    `peer` names the server in errors; `on_lost` is called once when it cannot accept further requests. The
    server's settings are known, and so its limit of streams, when `wait_until_ready` returns.
    """

    def __init__(self, peer: str, on_lost: Callable[[Http2Connection], None]) -> None:
        core = ClientConnection(
            stream_window=WINDOW,
            connection_window=CONNECTION_WINDOW,
            header_list=MAX_HEADERS,
            max_streams=MAX_STREAMS,
        )
        super().__init__(core, asyncio.get_running_loop())
        self.peer = peer
        self._on_lost = on_lost
        self._retired = False
        self._unread = bytearray()
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._pinged_at = 0.0

    @property
    def free_streams(self) -> int:
        """Return how many further exchanges may begin now."""
        if self._retired or self._transport is None or not self.usable or not self._core.ready:
            return 0
        return MAX_STREAMS - len(self._streams)

    async def wait_until_ready(self) -> None:
        """Wait for the server's settings. Raise Unavailable if the connection is lost before they come."""
        if not await asyncio.shield(self.greeted):
            raise Unavailable(self.closed, subject=self.peer)

    async def request(
        self, method: str, path: str, headers: Headers, authority: str, body: bytes
    ) -> Exchange:
        """Send one request and wait for the head of its answer. The caller has seen that a stream is free.

        Raises Unavailable when the connection or the exchange breaks off first.
        """
        if self.free_streams < 1:
            raise Unavailable("the connection accepts no further requests", subject=self.peer)
        fixed = ((":method", method), (":scheme", "https"), (":authority", authority), (":path", path))
        fields = [(name.encode(), value.encode()) for name, value in (*fixed, *headers)]
        exchange = Exchange(self.peer, encode(fields, _SECRET), body)
        try:
            self.begin(exchange)
            await exchange.wait_for_head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    def close(self) -> None:
        """Close now: whatever is under way fails."""
        self.lose("the connection was closed")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed:
            self._transport.abort()
            return
        self.flush()
        self._check_again_in(PING_AFTER)

    def data_received(self, data: bytes) -> None:
        reads_on = bool(self._unread)
        self._unread += data
        if not reads_on:
            self._read_on()

    def _read_on(self) -> None:
        """Take one piece of what has come; TLS delivers up to 256 KB at once."""
        if self.closed or self._transport is None:
            self._unread.clear()  # asyncio may deliver what TLS has decrypted after the abort
            return
        self.receive(bytes(self._unread[:PIECE]))
        self.flush()
        del self._unread[:PIECE]
        if self._unread:
            # At most one delivery of TLS waits here, while other peers get their turn of the loop.
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)
        else:
            self._transport.resume_reading()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        unread, self._unread = bytes(self._unread), bytearray()
        if not self.closed:
            self.receive(unread)  # answers that came before the end
        self._transport = None
        self.lose(f"connection lost: {exc}" if exc else "the server closed the connection")

    # Inside

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _shut(self, why: str) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._retire()
        if self._transport is not None:
            # close() would wait 30 s for the closing message of TLS, and the server may be gone.
            self._transport.abort()

    def _retire(self) -> None:
        if not self._retired:
            # Once: both GOAWAY and the end of the connection come here.
            self._retired = True
            self._on_lost(self)

    def _check_again_in(self, seconds: float) -> None:
        self._watchdog = self._loop.call_later(seconds, self._check_alive)

    def _check_alive(self) -> None:
        quiet_for = self._loop.time() - self._received_at
        if quiet_for < PING_AFTER:
            self._check_again_in(PING_AFTER - quiet_for)
        elif self._pinged_at > self._received_at:
            self.lose("the server did not answer a ping")
        else:
            self._pinged_at = self._loop.time()
            self._core.ping(b"kubengin")
            self.flush()
            self._check_again_in(PING_WAIT)
