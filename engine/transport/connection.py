"""One HTTP/2 connection of a client: its streams, what arrives for them, GOAWAY, and its end.

The native core (`engine._fast.http2`) implements the protocol. `MultiplexedConnection` passes the core's
events to the streams; `grpc_channel` and `http2` add how bytes reach the server, and what an answer means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final, Generic, TypeVar

from engine._fast.http2.client import (
    BROKEN,
    DATA,
    END,
    GOAWAY,
    HEAD,
    RESET,
    SETTINGS,
    ClientConnection,
)

Item = TypeVar("Item")
Fields = list[tuple[bytes, bytes]]

PIECE: Final = 32 * 1024
"""Bytes of a server that are read in one turn of the event loop: at worst 10 ms of work."""
CALM_SECONDS: Final = 1.0
MOST_WAITING: Final = 10_000
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 7, 8, 11
"""Error numbers of RFC 9113, section 7."""
GOING_AWAY: Final = "the server is closing the connection"


class Stream:
    """Hold one request and its answer. `number` is 0 until the request is sent; `head` is its header
    block.
    """

    __slots__ = ("again", "body", "connection", "head", "number")

    def __init__(self, head: bytes = b"", body: bytes = b"") -> None:
        self.head, self.body = head, body
        self.number = 0
        self.again = False
        """Whether a server has once refused to begin with the request."""
        self.connection: MultiplexedConnection | None = None

    def fields(self, fields: Fields) -> None:
        """Take headers or trailers."""
        raise NotImplementedError

    def data(self, data: bytes) -> None:
        """Take a part of the body, whose share of the window `connection.take` returns to the server."""
        raise NotImplementedError

    def end(self) -> None:
        """Note that the answer is complete."""
        raise NotImplementedError

    def fail(self, why: str, code: int | None = None) -> None:
        """Note that the answer breaks off; `code` is the HTTP/2 error with which the server reset the
        stream.
        """
        raise NotImplementedError

    def not_begun(self, why: str) -> None:
        """Note that the server has not begun with the request, so it may be sent again, on another
        connection.
        """
        raise NotImplementedError


class Arrivals(Generic[Item]):
    """Queue what has arrived for a reader: items, then the end or an error."""

    __slots__ = ("_error", "_news", "ended", "items")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """End, unless it has ended already; items that have arrived are still read."""
        if not self.ended:
            self.ended, self._error = True, error
        self._news.set()

    def is_over(self) -> bool:
        """Tell whether nothing follows. Raises the error with which it ended."""
        if self._error is not None:
            raise self._error
        return self.ended

    async def wait(self) -> None:
        """Return after the next change."""
        self._news.clear()
        await self._news.wait()


class MultiplexedConnection:
    """Carry the streams of one connection. Subclasses write with `_write`, and close with `_shut`."""

    def __init__(self, core: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop
        self._streams: dict[int, Stream] = {}
        self._waiting: deque[Stream] = deque()
        self._received_at = loop.time()
        self._calm_at = self._received_at + CALM_SECONDS
        self.closed = ""
        """Why the connection has ended; empty before."""
        self.greeted: asyncio.Future[bool] = loop.create_future()
        """Whether the server has sent its settings before the connection ended."""

    @property
    def usable(self) -> bool:
        """Tell whether new requests may be sent, or wait for their turn."""
        return not self.closed and self._core.usable

    @property
    def idle(self) -> bool:
        return not self._streams

    def begin(self, stream: Stream) -> None:
        """Send the request, or let it wait until the server takes further streams."""
        stream.connection = self
        if not self._core.ready:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(stream)
            else:
                # A server that never raises its limit of streams must not let the queue grow without bound.
                stream.fail(f"{MOST_WAITING} calls wait for the server already", ENHANCE_YOUR_CALM)
            return
        stream.number = self._core.request(stream.head, stream.body)
        self._streams[stream.number] = stream
        self.flush()

    def release(self, stream: Stream) -> None:
        """Reset a stream whose answer nobody waits for any longer; does nothing if it has ended."""
        if stream.number == 0:
            with contextlib.suppress(ValueError):
                self._waiting.remove(stream)
        elif self._streams.pop(stream.number, None) is not None:
            # Bytes of the stream that are still on their way return to the connection's window in `receive`.
            self._core.reset(stream.number, CANCEL)
            self._after_a_stream()
            self.flush()

    def take(self, stream: Stream, size: int) -> None:
        """Let the server send `size` more bytes; the next `flush` tells it."""
        self._core.take(stream.number, size)

    def flush(self) -> None:
        """Send what the core has to say."""
        if not self.closed and (data := self._core.output()):
            self._write(data)

    def lose(self, why: str) -> None:
        """End the connection: requests in progress fail, requests that wait for their turn go elsewhere."""
        if self.closed:
            return
        self.closed = why
        # Before the streams fail: a caller that begins again at once must not get this connection.
        self._shut(why)
        if not self.greeted.done():
            self.greeted.set_result(False)
        begun, self._streams = self._streams, {}
        for stream in begun.values():
            stream.fail(why)
        self._begin_elsewhere(self._all_waiting(), why)

    def receive(self, data: bytes | memoryview) -> None:
        """Pass what the server has sent on to the streams."""
        self._received_at = now = self._loop.time()
        # The core ends a connection that sends too many frames without data (pings, settings, empty frames).
        # Slow ones over a long time are no attack, so the count starts again each second.
        if now >= self._calm_at:
            self._core.calm()
            self._calm_at = now + CALM_SECONDS
        for kind, number, what, code in self._core.receive(data):
            if kind == DATA:
                if (stream := self._streams.get(number)) is not None:
                    stream.data(what)
                else:  # of a stream that was reset: its bytes count in the connection's window all the same
                    self._core.take(number, len(what))
            elif kind == SETTINGS:
                if not self.greeted.done():
                    self.greeted.set_result(True)
                self._after_a_stream()
            elif kind == GOAWAY:
                self._go_away(number)
            elif kind == BROKEN:
                self.flush()  # tells the server why
                self.lose(f"the server violates HTTP/2 (error {code})")
                return
            elif (stream := self._streams.get(number)) is not None:
                if kind == HEAD:
                    stream.fields(what)
                elif kind == END:
                    del self._streams[number]
                    stream.end()
                    self._after_a_stream()
                elif kind == RESET:
                    del self._streams[number]
                    self._is_reset(stream, code)
                    self._after_a_stream()

    def _write(self, data: bytes) -> None:
        raise NotImplementedError

    def _shut(self, why: str) -> None:
        raise NotImplementedError

    def _retire(self) -> None:
        """Handle that the server takes no further requests here; those in progress go on. Do nothing by
        default.
        """

    def _is_reset(self, stream: Stream, code: int) -> None:
        text = f"the server reset the request (HTTP/2 error {code})"
        if code == REFUSED_STREAM and not stream.again:
            self._begin_elsewhere([stream], text)
        else:
            stream.fail(text, code)

    def _go_away(self, last: int) -> None:
        """Hand on what the server has not begun with; the rest may end here."""
        # RFC 9113, section 6.8: the server has not acted on streams above the last that it names.
        unbegun = [self._streams.pop(number) for number in list(self._streams) if number > last]
        self._retire()
        self._begin_elsewhere(unbegun + self._all_waiting(), GOING_AWAY)
        self._after_a_stream()

    def _all_waiting(self) -> list[Stream]:
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def _begin_elsewhere(self, streams: list[Stream], why: str) -> None:
        """Hand on requests that the server has not begun with; each one once, since servers that refuse
        everything would be asked without end. Those that were never sent do not count.
        """
        for stream in streams:
            if stream.number:
                if stream.again:
                    stream.fail(why)
                    continue
                stream.again, stream.number = True, 0
            stream.connection = None
            stream.not_begun(why)

    def _after_a_stream(self) -> None:
        while self._waiting and self._core.ready:
            self.begin(self._waiting.popleft())
        if not self._core.usable and not self._streams and not self._waiting:
            # Later, because events that came with the last one may still be on their way to their streams.
            self._loop.call_soon(self.lose, "the server closed the connection")
