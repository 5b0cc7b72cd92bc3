"""Provide byte links to a client, and the inboxes in which its data waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from engine.transport import websocket

READ = 64 * 1024
INBOX = 256 * 1024
LEAVE_TIME = 5.0


class Link(Protocol):
    """Carry bytes both ways in order."""

    async def read(self) -> bytes:
        """Return some bytes, or one message; empty at the end, whatever the cause."""

    def push(self, data: bytes) -> None:
        """Send without waiting: for occasional small data."""

    async def write(self, data: bytes) -> None:
        """Write, waiting while the client is slow; the order is that of the calls. Raise ConnectionError."""

    def close(self) -> None: ...


class TcpLink:
    """Wrap a TCP connection; `early` is data that arrived with the request's head."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._early = early

    async def read(self) -> bytes:
        early, self._early = self._early, b""
        if early:
            return early
        try:
            return await self._reader.read(READ)
        except ConnectionError:
            return b""

    def push(self, data: bytes) -> None:
        self._writer.write(data)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class WebSocketLink:
    """Wrap a WebSocket on top of another link: `read` and `write` are whole messages."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._framing = websocket.Framing()
        self._messages: deque[websocket.Message] = deque()
        self._closed = False

    async def read(self) -> bytes:
        while True:
            while self._messages:
                message = self._messages.popleft()
                if message.kind in (websocket.TEXT, websocket.BINARY) and message.data:
                    return message.data
                if message.kind == websocket.PING:
                    with contextlib.suppress(ConnectionError):
                        await self._link.write(self._framing.pong(message.data))
                if message.kind == websocket.CLOSE:
                    await self.finish()
                    return b""
            data = await self._link.read()
            if not data:
                return b""
            try:
                self._messages.extend(self._framing.feed(data))
            except websocket.WebSocketError as error:
                await self.finish(error.code, str(error))
                return b""

    def push(self, data: bytes) -> None:
        self._link.push(self._framing.message(data))

    async def write(self, data: bytes) -> None:
        await self._link.write(self._framing.message(data))

    async def ping(self) -> None:
        await self._link.write(self._framing.ping())

    async def finish(self, code: int = websocket.NORMAL, reason: str = "") -> None:
        """Send the close frame, once."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(ConnectionError):
                await self._link.write(self._framing.close(code, reason))

    def close(self) -> None:
        self._link.close()


class Inbox:
    """Queue the bytes of one channel for one reader; `taken` receives how many it took."""

    def __init__(self, taken: Callable[[int], None] = lambda _: None) -> None:
        self._taken = taken
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._discard = False
        self._changed = asyncio.Event()

    def put(self, data: bytes) -> None:
        if self._discard or not data:
            self._taken(len(data))
            return
        self._pieces.append(data)
        self._size += len(data)
        self._changed.set()

    def end(self) -> None:
        """Mark the end: no more data comes."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Drop data that is here and that still comes, because nothing reads it."""
        self._discard = True
        self._taken(self._size)
        self._pieces.clear()
        self._size = 0
        self._changed.set()

    async def take(self) -> bytes:
        """Return the next bytes; empty at the end."""
        while not self._pieces and not self._ended:
            await self._wait()
        if not self._pieces:
            return b""
        data = self._pieces.popleft()
        self._size -= len(data)
        self._taken(len(data))
        self._changed.set()
        return data

    async def wait_for_space(self) -> None:
        """Wait until the reader has caught up."""
        while self._size > INBOX and not self._discard:
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
