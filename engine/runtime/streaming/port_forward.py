"""Forward ports: pairs of channels, each with a connection inside the pod's network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.api.errors import KubengineError
from engine.api.quantity import decimal
from engine.runtime.streaming.connections import ChannelConnection, SpdyConnection
from engine.runtime.streaming.links import READ, Inbox, Link, WebSocketLink
from engine.runtime.streaming.protocol import PortForwardTicket
from engine.runtime.streaming.remote_command import CREATION_TIME
from engine.transport import spdy

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connect to a port of the pod. Raise OSError, or a KubengineError."""
Send = Callable[[bytes], Awaitable[None]]
End = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Pair:
    """Hold the two streams of one forwarded connection; either may not be open yet."""

    port: int
    data: int = 0
    error: int = 0
    inbox: Inbox | None = None
    expiry: asyncio.TimerHandle | None = None


class SpdyForwarder:
    """Forward with a data and an error stream per connection; the client names the port and pairs them by
    request.
    """

    def __init__(self, link: Link, connect: Connect) -> None:
        self.connection = SpdyConnection(link, self._on_open)
        self._connect = connect
        self._pairs: dict[str, _Pair] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the client leaves; then close every connection."""
        await self.connection.gone.wait()
        for pair in self._pairs.values():
            if pair.expiry is not None:
                pair.expiry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_open(self, stream: int, headers: spdy.Headers) -> Inbox | None:
        kind = "".join(headers.get("streamtype", ())).lower()
        port = decimal("".join(headers.get("port", ()))) or 0
        if kind not in ("data", "error") or not 0 < port < 1 << 16:
            return None
        # Without a request's name, a data stream belongs to the error stream before it.
        request = "".join(headers.get("requestid", ())) or str(stream if kind == "error" else stream - 2)
        pair = self._pairs.get(request)
        if pair is None:
            pair = self._pairs[request] = _Pair(port)
            loop = asyncio.get_running_loop()
            pair.expiry = loop.call_later(CREATION_TIME, self._pairs.pop, request, None)
        inbox = self.connection.inbox(stream)
        if kind == "error":
            if pair.error:
                return None
            pair.error = stream
            inbox.discard()
        else:
            if pair.inbox is not None:
                return None
            pair.data, pair.inbox = stream, inbox
        if pair.error and pair.inbox is not None:
            del self._pairs[request]
            assert pair.expiry is not None
            pair.expiry.cancel()
            task = asyncio.ensure_future(self._forward(pair, pair.inbox))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return inbox

    async def _forward(self, pair: _Pair, inbox: Inbox) -> None:
        send = self.connection.send
        with contextlib.suppress(ConnectionError):
            error = await forward(
                self._connect,
                pair.port,
                inbox,
                lambda data: send(pair.data, data),
                lambda: send(pair.data, b"", last=True),
            )
            await send(pair.error, error.encode(), last=True)


class WebSocketForwarder:
    """Forward ports fixed beforehand: two channels each, data and error, which begin with the
    port's number.
    """

    def __init__(self, link: Link, ticket: PortForwardTicket, connect: Connect) -> None:
        self._ports = ticket.ports
        self._connect = connect
        self._inboxes = {2 * number: Inbox() for number in range(len(ticket.ports))}
        self.connection = ChannelConnection(WebSocketLink(link), self._inboxes, closing=None)

    async def serve(self) -> None:
        """Serve until the client leaves, or every connection has ended."""
        everything = asyncio.ensure_future(self._forward_all())
        leaving = asyncio.ensure_future(self.connection.gone.wait())
        await asyncio.wait({everything, leaving}, return_when=asyncio.FIRST_COMPLETED)
        everything.cancel()
        leaving.cancel()
        await asyncio.gather(everything, leaving, return_exceptions=True)
        await self.connection.finish()

    async def _forward_all(self) -> None:
        await asyncio.gather(*(self._forward(number) for number in range(len(self._ports))))

    async def _forward(self, number: int) -> None:
        channel, port = 2 * number, self._ports[number]
        send = self.connection.send

        async def end() -> None:
            """End the channels, which this protocol can only do together."""

        with contextlib.suppress(ConnectionError):
            for each in (channel, channel + 1):
                await send(each, struct.pack("<H", port))
            error = await forward(
                self._connect, port, self._inboxes[channel], lambda data: send(channel, data), end
            )
            if error:
                await send(channel + 1, error.encode())


async def forward(connect: Connect, port: int, inbox: Inbox, send: Send, end: End) -> str:
    """Forward one connection until the pod's side has ended; return an error text, or nothing.

    The client's half may stay open then: clients keep theirs until they learn that the connection has ended.
    """
    try:
        reader, writer = await connect(port)
    except (OSError, KubengineError) as error:
        inbox.discard()
        await end()
        return f"port {port} of the pod: {_reason(error)}"
    up = asyncio.ensure_future(_upwards(inbox, writer))
    try:
        while data := await reader.read(READ):
            await send(data)
        await end()
    except OSError as error:
        return f"port {port} of the pod: {_reason(error)}"
    finally:
        up.cancel()
        writer.close()
    return ""


async def _upwards(inbox: Inbox, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await inbox.take():
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        inbox.discard()


def _reason(error: Exception) -> str:
    """Return the kernel's message, which asyncio replaces by its own."""
    return (
        os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or "timed out"
    )
