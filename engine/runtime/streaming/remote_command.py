"""Run exec and attach: connect a client's channels with a process's standard streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from engine.api.errors import KubengineError, Refused
from engine.runtime.streaming import protocol
from engine.runtime.streaming.connections import ChannelConnection, SpdyConnection, StreamConnection
from engine.runtime.streaming.links import Inbox, Link, WebSocketLink
from engine.runtime.streaming.protocol import CommandTicket, SizeReader
from engine.transport import spdy, stream_protocols
from engine.transport.stream_protocols import CHANNELS, ERROR, RESIZE, STDERR, STDIN, STDOUT

CREATION_TIME = 30.0


class Process(Protocol):
    """Hold a process's standard streams. Closing it kills a command, and leaves an attached
    container running.
    """

    async def read(self) -> tuple[int, bytes] | int:
        """Return STDOUT or STDERR with some bytes, or the exit code. Raise Refused if it was lost."""

    async def write(self, data: bytes) -> None:
        """Write to its standard input; wait while it does not read."""

    def end_input(self) -> None: ...

    async def resize(self, columns: int, rows: int) -> None: ...

    def close(self) -> None: ...


OpenProcess = Callable[[CommandTicket], Awaitable[Process]]


class Client(Protocol):
    """Represent the client of a command. `inboxes` receives what it may send."""

    connection: StreamConnection
    inboxes: dict[int, Inbox]

    async def ready(self) -> None:
        """Wait until all channels are open. Raise Refused."""

    async def send(self, channel: int, data: bytes) -> None: ...

    async def end(self, channel: int) -> None: ...


class SpdyClient:
    """Represent a SPDY client, which opens and names a stream for each channel."""

    def __init__(self, link: Link, expected: set[int]) -> None:
        self.inboxes: dict[int, Inbox] = {}
        self._expected = expected
        self._streams: dict[int, int] = {}
        self._ready = asyncio.Event()
        self._spdy = SpdyConnection(link, self._on_open)
        self.connection: StreamConnection = self._spdy

    async def ready(self) -> None:
        waiting = asyncio.ensure_future(self._ready.wait())
        leaving = asyncio.ensure_future(self.connection.gone.wait())
        try:
            await asyncio.wait({waiting, leaving}, timeout=CREATION_TIME, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            leaving.cancel()
        if not self._ready.is_set():
            missing = sorted(
                name for name, channel in CHANNELS.items() if channel in self._expected - self._streams.keys()
            )
            raise Refused(f"the client did not open its streams {', '.join(missing)}", subject="streaming")

    async def send(self, channel: int, data: bytes) -> None:
        if channel in self._streams:
            await self._spdy.send(self._streams[channel], data)

    async def end(self, channel: int) -> None:
        if channel in self._streams:
            await self._spdy.send(self._streams[channel], b"", last=True)

    def _on_open(self, stream: int, headers: spdy.Headers) -> Inbox | None:
        channel = CHANNELS.get("".join(headers.get("streamtype", ())).lower())
        if channel is None or channel in self._streams:
            return None
        self._streams[channel] = stream
        inbox = self.inboxes[channel] = self._spdy.inbox(stream)
        if channel not in (STDIN, RESIZE):
            inbox.discard()
        if self._expected <= self._streams.keys():
            self._ready.set()
        return inbox


class WebSocketClient:
    """Represent a WebSocket client, whose channels are all open from the beginning."""

    def __init__(self, link: Link, expected: set[int], version: str) -> None:
        self.inboxes = {channel: Inbox() for channel in (STDIN, RESIZE) if channel in expected}
        self._expected = expected
        self._channels = ChannelConnection(
            WebSocketLink(link),
            self.inboxes,
            closing=stream_protocols.CLOSE_CHANNEL if version == stream_protocols.V5 else None,
        )
        self.connection: StreamConnection = self._channels

    async def ready(self) -> None:
        """Tell the client that it is connected by an empty message on the first channel that it reads."""
        first = next(c for c in (STDOUT, STDERR, ERROR) if c in self._expected)
        with contextlib.suppress(ConnectionError):
            await self._channels.send(first, b"")

    async def send(self, channel: int, data: bytes) -> None:
        if channel in self._expected:
            await self._channels.send(channel, data)

    async def end(self, channel: int) -> None:
        """End all channels at once by closing the socket, as a server does."""


async def serve(client: Client, ticket: CommandTicket, version: str, open_process: OpenProcess) -> None:
    """Run `ticket`'s command, or attach, until it ends or the client leaves."""
    try:
        await client.ready()
        process = await open_process(ticket)
    except (KubengineError, OSError) as error:
        await _conclude(client, protocol.failure_status(str(error), version))
        return
    inputs = [asyncio.ensure_future(_copy_input(client, process, ticket))]
    if RESIZE in client.inboxes and ticket.tty:
        inputs.append(asyncio.ensure_future(_copy_sizes(client.inboxes[RESIZE], process)))
    output = asyncio.ensure_future(_copy_output(client, process, ticket, version))
    leaving = asyncio.ensure_future(client.connection.gone.wait())
    try:
        await asyncio.wait({output, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (output, leaving, *inputs):
            task.cancel()
        await asyncio.gather(output, leaving, *inputs, return_exceptions=True)
        if ticket.stdin and not ticket.command:
            process.end_input()  # an attached client that left has ended its input
        process.close()
    if not output.cancelled() and output.exception() is None:
        await _conclude(client, output.result())


async def _copy_output(client: Client, process: Process, ticket: CommandTicket, version: str) -> bytes:
    """Copy all of its output; return the status that ends it."""
    wanted = {STDOUT: ticket.stdout, STDERR: ticket.stderr}
    try:
        while True:
            what = await process.read()
            if isinstance(what, int):
                return protocol.exit_status(what if ticket.command else 0, version)
            if wanted[what[0]]:
                await client.send(*what)
    except Refused as error:
        return protocol.failure_status(str(error), version)


async def _copy_input(client: Client, process: Process, ticket: CommandTicket) -> None:
    """Copy until the client ends its input, or the process is gone."""
    inbox = client.inboxes.get(STDIN)
    if inbox is None:
        return
    if not ticket.stdin:
        inbox.discard()
        return
    try:
        while data := await inbox.take():
            await process.write(data)
        process.end_input()
    except ConnectionError:
        inbox.discard()


async def _copy_sizes(inbox: Inbox, process: Process) -> None:
    reader = SizeReader()
    with contextlib.suppress(ConnectionError):
        while data := await inbox.take():
            for columns, rows in reader.feed(data):
                await process.resize(columns, rows)


async def _conclude(client: Client, status: bytes) -> None:
    """Report how it ended, after all output."""
    with contextlib.suppress(ConnectionError):
        if status:
            await client.send(ERROR, status)
        for channel in (STDOUT, STDERR, ERROR):
            await client.end(channel)
    await client.connection.finish()
