"""Manage a client's connection over either transport: reading, writing, and detecting that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from engine.runtime.streaming.links import LEAVE_TIME, Inbox, Link, WebSocketLink
from engine.transport import spdy
from engine.transport.spdy_session import Opened, Received, Reset, SpdySession

CHUNK = 32 * 1024
LOG = logging.getLogger(__name__)


class StreamConnection(Protocol):
    """Hold a connection. `gone` is set when the client has left; `moved_at` is when a byte last went either
    way.
    """

    gone: asyncio.Event
    moved_at: float

    async def run(self) -> None:
        """Read until the client leaves."""

    async def keep_alive(self) -> None:
        """Write data without meaning, so that a dead peer is noticed. Raise ConnectionError."""

    async def finish(self) -> None:
        """Give the client a moment to read the last data before the connection closes."""


class SpdyConnection:
    """Serve a SPDY connection. `on_open` returns the destination of a new stream's bytes, or None
    to refuse it.
    """

    def __init__(self, link: Link, on_open: Callable[[int, spdy.Headers], Inbox | None]) -> None:
        self.gone = asyncio.Event()
        self.moved_at = asyncio.get_running_loop().time()
        self._link = link
        self._on_open = on_open
        self._session = SpdySession()
        self._inboxes: dict[int, Inbox] = {}
        self._windows = asyncio.Event()
        self._pings = 0

    def inbox(self, stream: int) -> Inbox:
        """Return an inbox whose reader gives the stream's credit back."""

        def taken(count: int) -> None:
            self._session.consumed(stream, count)
            credit = self._session.output()
            if credit and not self.gone.is_set():
                self._link.push(credit)

        return Inbox(taken)

    async def run(self) -> None:
        try:
            while data := await self._link.read():
                try:
                    events = self._session.receive(data)
                except spdy.SpdyError as error:
                    LOG.warning("a client of the streaming server broke SPDY: %s", error)
                    await self._flush()
                    return
                self._windows.set()
                if events:
                    self._moved()
                for event in events:
                    await self._handle(event)
                await self._flush()
        except ConnectionError:
            return
        finally:
            self.gone.set()
            self._windows.set()
            for inbox in self._inboxes.values():
                inbox.end()

    async def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send, waiting for the client's window and for the network. Raise ConnectionError."""
        while data:
            if self.gone.is_set() or not self._session.writable(stream):
                raise ConnectionResetError("the client has closed the stream")
            sendable = min(self._session.sendable(stream), CHUNK)
            if not sendable:
                self._windows.clear()
                await self._windows.wait()
                continue
            piece, data = data[:sendable], data[sendable:]
            self._session.send(stream, piece)
            self._moved()
            await self._flush()
        if last:
            self._session.send(stream, b"", last=True)
            await self._flush()

    async def keep_alive(self) -> None:
        self._pings = (self._pings + 2) & 0x7FFFFFFE
        self._session.ping(self._pings)
        await self._flush()

    async def finish(self) -> None:
        for inbox in self._inboxes.values():
            inbox.discard()
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._session.go_away()
            async with asyncio.timeout(LEAVE_TIME):
                await self._flush()
                await self.gone.wait()

    async def _handle(self, event: object) -> None:
        match event:
            case Opened(stream, headers, last):
                inbox = self._on_open(stream, headers)
                if inbox is None:
                    self._session.refuse(stream)
                    return
                self._session.accept(stream)
                if last:
                    inbox.end()
                else:
                    self._inboxes[stream] = inbox
            case Received(stream, data, last) if stream in self._inboxes:
                inbox = self._inboxes[stream]
                inbox.put(data)
                if last:
                    self._inboxes.pop(stream).end()
                await self._flush()
                await inbox.wait_for_space()
            case Received(stream, data):
                self._session.consumed(stream, len(data))
            case Reset(stream) if stream in self._inboxes:
                self._inboxes.pop(stream).end()

    async def _flush(self) -> None:
        data = self._session.output()
        if data:
            await self._link.write(data)

    def _moved(self) -> None:
        self.moved_at = asyncio.get_running_loop().time()


class ChannelConnection:
    """Serve a WebSocket of numbered channels: the first byte of each message is its channel.

    The client may write to `inboxes`; data for other channels is dropped. A message on channel `closing`
    (v5) ends a channel.
    """

    def __init__(self, link: WebSocketLink, inboxes: dict[int, Inbox], *, closing: int | None) -> None:
        self.gone = asyncio.Event()
        self.moved_at = asyncio.get_running_loop().time()
        self._link = link
        self._inboxes = inboxes
        self._closing = closing

    async def run(self) -> None:
        try:
            while message := await self._link.read():
                self._moved()
                channel, data = message[0], message[1:]
                if channel == self._closing and data[0:1]:
                    channel, data = data[0], b""
                    if channel in self._inboxes:
                        self._inboxes[channel].end()
                inbox = self._inboxes.get(channel)
                if inbox is not None:
                    inbox.put(data)
                    await inbox.wait_for_space()
        finally:
            self.gone.set()
            for inbox in self._inboxes.values():
                inbox.end()

    async def send(self, channel: int, data: bytes) -> None:
        """Send, waiting for the network. Raise ConnectionError."""
        if self.gone.is_set():
            raise ConnectionResetError("the client has left")
        self._moved()
        await self._link.write(bytes([channel]) + data)

    async def keep_alive(self) -> None:
        await self._link.ping()

    async def finish(self) -> None:
        for inbox in self._inboxes.values():
            inbox.discard()
        await self._link.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIME):
                await self.gone.wait()

    def _moved(self) -> None:
        self.moved_at = asyncio.get_running_loop().time()
