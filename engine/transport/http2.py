"""The client side of one HTTP/2 connection: many concurrent exchanges, each at its own pace.

The native core (`engine._fast.http2`) implements the protocol; this file moves bytes between it, the
transport (asyncio's TLS, over `ssl.MemoryBIO`) and the callers. The window of received data is returned to
the server only when its reader has taken it, so at most `WINDOW` bytes wait for a slow reader, which does
not delay the others. A connection that stays silent is pinged after `PING_AFTER` seconds and closed if
nothing comes back within `PING_WAIT` (as client-go does).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, cast

from engine._fast.http2.client import (
    BROKEN,
    DATA,
    END,
    GOAWAY,
    HEAD,
    RESET,
    SETTINGS,
    ClientConnection,
    encode,
)
from engine.api.errors import Refused, Unavailable

WINDOW = 256 * 1024
MAX_STREAMS = 100
CONNECTION_WINDOW = MAX_STREAMS * WINDOW
MAX_HEADERS = 64 * 1024
PING_AFTER = 30.0
PING_WAIT = 15.0
PIECE = 32 * 1024
"""Bytes of a server that are read, or given to one reader, in one turn of the event loop."""
CALM_SECONDS = 1.0
_CANCEL, _REFUSED_STREAM = 8, 7
_SECRET = frozenset((b"authorization",))

Headers = Iterable[tuple[str, str]]


class NotBegun(Unavailable):
    """The server says that it has not begun with the request: it may be sent again."""


class Exchange:
    """One request's answer. `status` and `headers` (lower case) are there; the body comes as it is read.

    Whoever holds one closes it (`async with`): an answer that is not read to its end is reset.
    """

    def __init__(self, connection: Http2Connection, stream: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._connection = connection
        self._stream = stream
        self._waiting: deque[bytes] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the rest of the answer."""
        unread = sum(map(len, self._waiting))
        self._waiting.clear()
        self._connection.release(self._stream, unread)
        self._ended = True

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, about PIECE bytes in a turn of the event loop.

        Raises Unavailable when it breaks off.
        """
        while True:
            while self._waiting:
                data = self._piece()
                self._connection.taken(self._stream, len(data))
                yield data
                await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
            if self._ended:
                return
            await self._until_news()

    def _piece(self) -> bytes:
        first = self._waiting.popleft()
        if not self._waiting or len(first) >= PIECE:
            return first
        piece = bytearray(first)
        while self._waiting and len(piece) < PIECE:
            piece += self._waiting.popleft()
        return bytes(piece)

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises Refused when it is longer than `limit` bytes."""
        body = bytearray()
        async for data in self.chunks():
            body += data
            if len(body) > limit:
                raise Refused(f"the response is longer than {limit} bytes", subject=self._connection.peer)
        return bytes(body)

    # What the connection tells

    def head(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Return the response's status and headers, ignoring interim responses (1xx) and trailers."""
        if self.status:
            return
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        status = known.pop(":status", "")
        if not status.isascii() or not status.isdigit() or len(status) != 3:
            self.fail(Unavailable("the response has no status", subject=self._connection.peer))
        elif not status.startswith("1"):
            self.status, self.headers = int(status), known
            self._news.set()

    def data(self, data: bytes) -> None:
        self._waiting.append(data)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def fail(self, error: Exception) -> None:
        if not self._ended:
            self._error, self._ended = error, True
        self._news.set()

    # For the connection's own use

    async def wait_for_head(self) -> None:
        while not self.status:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise Unavailable("the response ended before its headers", subject=self._connection.peer)
            await self._until_news()

    async def _until_news(self) -> None:
        self._news.clear()
        await self._news.wait()


class Http2Connection(asyncio.Protocol):
    """A connection that speaks HTTP/2 from its first byte (TLS with ALPN `h2`, or prior knowledge).

    `peer` names the server in errors; `on_lost` is called once when it cannot accept further requests. The
    server's settings are known, and so its limit of streams, when `wait_until_ready` returns.
    """

    def __init__(self, peer: str, on_lost: Callable[[Http2Connection], None]) -> None:
        self.peer = peer
        self.usable = True
        self._on_lost = on_lost
        self._core = ClientConnection(
            stream_window=WINDOW,
            connection_window=CONNECTION_WINDOW,
            header_list=MAX_HEADERS,
            max_streams=MAX_STREAMS,
        )
        self._exchanges: dict[int, Exchange] = {}
        self._ready = asyncio.Event()
        self._unread = bytearray()
        self._lost: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._calm_at = self._heard + CALM_SECONDS
        self._watchdog: asyncio.TimerHandle | None = None
        self._pinged = False

    @property
    def room(self) -> int:
        """How many more exchanges may begin now."""
        if not self.usable or self._transport is None or not self._core.ready:
            return 0
        return MAX_STREAMS - len(self._exchanges)

    @property
    def idle(self) -> bool:
        return not self._exchanges

    async def wait_until_ready(self) -> None:
        """Raises Unavailable when the connection is lost before it works."""
        await self._ready.wait()
        if self._lost is not None:
            raise self._lost

    async def request(
        self, method: str, path: str, headers: Headers, authority: str, body: bytes
    ) -> Exchange:
        """Send one request and wait for the head of its answer. The caller has seen that there is `room`.

        Raises Unavailable when the connection or the exchange breaks off first.
        """
        if self.room < 1:
            raise Unavailable("the connection accepts no further requests", subject=self.peer)
        fixed = ((":method", method), (":scheme", "https"), (":authority", authority), (":path", path))
        fields = [(name.encode(), value.encode()) for name, value in (*fixed, *headers)]
        stream = self._core.request(encode(fields, _SECRET), body)
        exchange = self._exchanges[stream] = Exchange(self, stream)
        try:
            self._flush()
            await exchange.wait_for_head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    # What an exchange tells

    def taken(self, stream: int, size: int) -> None:
        """`size` bytes of a stream's data have been read: the server may send as many again."""
        self._core.take(stream, size)
        self._flush()

    def release(self, stream: int, unread: int) -> None:
        """Nobody wants more of the exchange; one that has not ended is reset."""
        if self._exchanges.pop(stream, None) is None:
            return
        self._core.reset(stream, _CANCEL)
        self.taken(stream, unread)
        if not self.usable and not self._exchanges:
            self.close()

    def retire(self) -> None:
        """Take no new requests; close when the last exchange has ended."""
        self._stop_taking()
        if not self._exchanges:
            self.close()

    def close(self) -> None:
        """Close now: whatever is under way fails. TLS would wait 30 s for the server's last word."""
        self._stop_taking()
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._flush()
        self._look_again_in(PING_AFTER)

    def data_received(self, data: bytes) -> None:
        reads_on = bool(self._unread)
        self._unread += data
        if not reads_on:
            self._read_on()

    def _read_on(self) -> None:
        """One piece of what has come; TLS delivers up to 256 KB at once."""
        if self._transport is None:
            return
        self._receive(bytes(self._unread[:PIECE]))
        del self._unread[:PIECE]
        if self._unread:
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)
        else:
            self._transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._pinged = False
        if self._heard >= self._calm_at:
            self._core.calm()
            self._calm_at = self._heard + CALM_SECONDS
        for kind, stream, what, number in self._core.receive(data):
            self._heed(kind, stream, what, number)
        self._flush()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._receive(bytes(self._unread))
        self._unread.clear()
        self._transport = None
        text = f"connection lost: {exc}" if exc else "the server closed the connection"
        self._fail(Unavailable(text, subject=self.peer))

    # Inside

    def _heed(self, kind: int, stream: int, what: Any, number: int) -> None:
        exchange = self._exchanges.get(stream)
        if kind == DATA:
            if exchange is None:
                self._core.take(stream, len(what))
            else:
                exchange.data(what)
        elif kind == SETTINGS:
            self._ready.set()
        elif kind == GOAWAY:
            self._going_away(stream)
        elif kind == BROKEN:
            self._flush()
            self._fail(Unavailable(f"the server violates HTTP/2 (error {number})", subject=self.peer))
        elif exchange is not None and kind == HEAD:
            exchange.head(what)
        elif exchange is not None and kind == END:
            exchange.end()
        elif exchange is not None and kind == RESET:
            text = f"the server reset the request (HTTP/2 error {number})"
            exchange.fail((NotBegun if number == _REFUSED_STREAM else Unavailable)(text, subject=self.peer))

    def _going_away(self, last: int) -> None:
        """GOAWAY: what the server has not begun will not be answered, the rest may end."""
        for stream, exchange in list(self._exchanges.items()):
            if stream > last:
                exchange.fail(NotBegun("the server is closing the connection", subject=self.peer))
        self.retire()

    def _fail(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._ready.set()
        for exchange in list(self._exchanges.values()):
            exchange.fail(error)
        self.close()

    def _stop_taking(self) -> None:
        if self._watchdog is not None and not self._exchanges:
            self._watchdog.cancel()
            self._watchdog = None
        if self.usable:
            self.usable = False
            self._on_lost(self)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            data = self._core.output()
            if data:
                self._transport.write(data)

    def _look_again_in(self, seconds: float) -> None:
        self._watchdog = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self._transport is None:
            return
        quiet_for = self._loop.time() - self._heard
        if quiet_for < PING_AFTER:
            self._look_again_in(PING_AFTER - quiet_for)
        elif self._pinged:
            self._fail(Unavailable("the server did not answer a ping", subject=self.peer))
        else:
            self._pinged = True
            self._core.ping(b"kubengin")
            self._flush()
            self._look_again_in(PING_WAIT)
