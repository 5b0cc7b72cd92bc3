"""One HTTP/2 connection from the client's side: many exchanges at once, each at its own pace.

`h2` keeps the protocol's state; this file moves bytes between it, the socket and those who wait. What a
server sends is acknowledged when its reader has taken it, so no more than `WINDOW` bytes wait for a slow
reader and a slow reader holds up nobody else. A connection that stays silent is pinged after
`PING_AFTER` seconds and given up when nothing comes back within `PING_WAIT` (as client-go does).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from engine.api.errors import Refused, Unavailable

WINDOW = 256 * 1024
MAX_STREAMS = 100
CONNECTION_WINDOW = MAX_STREAMS * WINDOW
MAX_HEADERS = 64 * 1024
PING_AFTER = 30.0
PING_WAIT = 15.0

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
        self.sent = False
        self._connection = connection
        self._stream = stream
        self._waiting: deque[tuple[bytes, int]] = deque()  # data, and what it takes of the window
        self._ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the rest of the answer."""
        unread = sum(size for _, size in self._waiting)
        self._waiting.clear()
        self._connection.release(self._stream, unread, finished=self._ended and self.sent)
        self._ended = True

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Unavailable when it breaks off."""
        while True:
            while self._waiting:
                data, size = self._waiting.popleft()
                self._connection.taken(self._stream, size)
                if data:
                    yield data
            if self._error is not None:
                raise self._error
            if self._ended:
                return
            await self._until_news()

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises Refused when it is longer than `limit` bytes."""
        body = bytearray()
        async for data in self.chunks():
            body += data
            if len(body) > limit:
                raise Refused(f"the answer is longer than {limit} bytes", subject=self._connection.peer)
        return bytes(body)

    # What the connection tells

    def head(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The answer's status and headers; an interim answer (1xx) is passed over."""
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        status = known.pop(":status", "")
        if not status.isdigit() or len(status) != 3:
            self.fail(Unavailable("the answer has no status", subject=self._connection.peer))
        elif not status.startswith("1"):
            self.status, self.headers = int(status), known
            self._news.set()

    def data(self, data: bytes, size: int) -> None:
        self._waiting.append((data, size))
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def fail(self, error: Exception) -> None:
        if not self._ended:
            self._error, self._ended = error, True
        self._news.set()

    def wake(self) -> None:
        """The flow-control window has grown."""
        self._news.set()

    # For the connection's own use

    async def wait_for_head(self) -> None:
        while not self.status:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise Unavailable("the answer ended before it began", subject=self._connection.peer)
            await self._until_news()

    async def wait_for_room(self) -> bool:
        """Until more may be sent; False once the server wants no more."""
        if self._ended or self.status:
            return False
        await self._until_news()
        return not (self._ended or self.status)

    async def _until_news(self) -> None:
        self._news.clear()
        await self._news.wait()


class Http2Connection(asyncio.Protocol):
    """A connection that speaks HTTP/2 from its first byte (TLS with ALPN `h2`, or prior knowledge).

    `peer` names the server in errors; `on_lost` is told once when it can take no more requests. The
    server's settings are known, and so its limit of streams, when `wait_until_ready` returns.
    """

    def __init__(self, peer: str, on_lost: Callable[[Http2Connection], None]) -> None:
        self.peer = peer
        self.usable = True
        self._on_lost = on_lost
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None, validate_inbound_headers=True)
        )
        self._h2.state_machine = _LivesOnAfterGoAway()
        self._exchanges: dict[int, Exchange] = {}
        self._ready = asyncio.Event()
        self._lost: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._pinged = False

    @property
    def room(self) -> int:
        """How many more exchanges may begin now."""
        if not self.usable or self._transport is None:
            return 0
        most = min(self._h2.remote_settings.max_concurrent_streams, MAX_STREAMS)
        return int(most) - len(self._exchanges)

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
            raise Unavailable("the connection takes no more requests", subject=self.peer)
        stream = self._h2.get_next_available_stream_id()
        exchange = self._exchanges[stream] = Exchange(self, stream)
        try:
            fixed = ((":method", method), (":scheme", "https"), (":authority", authority), (":path", path))
            self._h2.send_headers(stream, [*fixed, *headers], end_stream=not body)
            self._flush()
            exchange.sent = not body or await self._send(stream, exchange, body)
            await exchange.wait_for_head()
        except h2.exceptions.ProtocolError as error:
            exchange.close()
            raise Unavailable(f"HTTP/2: {error}", subject=self.peer) from error
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _send(self, stream: int, exchange: Exchange, body: bytes) -> bool:
        """Whether the server wanted all of the body."""
        at = 0
        while at < len(body):
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                if not await exchange.wait_for_room():
                    return False
                continue
            piece = body[at : at + room]
            at += len(piece)
            self._h2.send_data(stream, piece, end_stream=at == len(body))
            self._flush()
        return True

    # What an exchange tells

    def taken(self, stream: int, size: int) -> None:
        """`size` bytes of a stream's window have been read: the server may send as many again."""
        if self._transport is not None and size:
            self._h2.acknowledge_received_data(size, stream)
            self._flush()

    def release(self, stream: int, unread: int, *, finished: bool) -> None:
        if self._exchanges.pop(stream, None) is None:
            return
        if not finished and self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self._flush()
        self.taken(stream, unread)
        if not self.usable and not self._exchanges:
            self.close()

    def retire(self) -> None:
        """Take no new requests; close when the last exchange has ended."""
        self._stop_taking()
        if not self._exchanges:
            self.close()

    def close(self) -> None:
        """Close now: whatever is under way fails."""
        self._stop_taking()
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._flush()
        self._look_again_in(PING_AFTER)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._pinged = False
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._flush()
            self._fail(Unavailable(f"the server breaks HTTP/2: {error}", subject=self.peer))
            return
        for event in events:
            self._heed(event)
        self._flush()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        text = f"connection lost: {exc}" if exc else "the server closed the connection"
        self._fail(Unavailable(text, subject=self.peer))

    # Inside

    def _heed(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self._of(event.stream_id, lambda e: e.head(event.headers))
            case h2.events.DataReceived():
                exchange = self._exchanges.get(event.stream_id)
                if exchange is None:
                    self.taken(event.stream_id, event.flow_controlled_length)
                else:
                    exchange.data(event.data, event.flow_controlled_length)
            case h2.events.StreamEnded():
                self._of(event.stream_id, Exchange.end)
            case h2.events.StreamReset():
                refused = event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
                text = f"the server reset the request ({event.error_code!s})"
                error = (NotBegun if refused else Unavailable)(text, subject=self.peer)
                self._of(event.stream_id, lambda e: e.fail(error))
            case h2.events.WindowUpdated():
                if event.stream_id:
                    self._of(event.stream_id, Exchange.wake)
                else:
                    self._wake_all()
            case h2.events.RemoteSettingsChanged():
                self._ready.set()
                self._wake_all()
            case h2.events.ConnectionTerminated():
                self._going_away(event.last_stream_id)

    def _of(self, stream: int | None, tell: Callable[[Exchange], None]) -> None:
        if stream is not None and (exchange := self._exchanges.get(stream)) is not None:
            tell(exchange)

    def _wake_all(self) -> None:
        for exchange in self._exchanges.values():
            exchange.wake()

    def _going_away(self, last: int | None) -> None:
        """GOAWAY: what the server has not begun will not be answered, the rest may end."""
        for stream, exchange in list(self._exchanges.items()):
            if stream > (last or 0):
                exchange.fail(NotBegun("the server goes away", subject=self.peer))
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
            data = self._h2.data_to_send()
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
            self._fail(Unavailable("no answer to a ping", subject=self.peer))
        else:
            self._pinged = True
            self._h2.ping(b"kubengin")
            self._flush()
            self._look_again_in(PING_WAIT)


class _LivesOnAfterGoAway(h2.connection.H2ConnectionStateMachine):
    """The answers under way may still end after a GOAWAY (RFC 9113, 6.8); h2 would refuse every frame."""

    def process_input(self, input_: h2.connection.ConnectionInputs) -> list[h2.events.Event]:
        if input_ is h2.connection.ConnectionInputs.RECV_GOAWAY:
            return []
        events: list[h2.events.Event] = super().process_input(input_)
        return events
