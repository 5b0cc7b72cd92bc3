"""Serves gRPC on a unix socket that is claimed first and answers later.

The socket belongs to this module; connections are forwarded to grpcio's server, which the first one loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.devices.methods import Methods
from engine.host.loop_share import LoopShare
from engine.host.sockets import Claim, claim
from engine.host.tasks import Tasks

if TYPE_CHECKING:
    from engine.devices.grpc_server import GrpcServer

MOST_CONNECTIONS = 256
BACKLOG = 256
LINGER = 5.0
"""Seconds that a peer has to read the last response."""
TURNS_TO_END = 4
"""Iterations of the loop until asyncio has passed on accepted connections and closed the cut ones."""
PIECES_IN_A_TURN = 2
"""Of the event loop, for all connections of a socket: 16 KB may hold hundreds of calls."""
_PIECE = 16 * 1024

log = logging.getLogger("kubengine.devices")


class ClaimedServer:
    """Serve `methods` at `path`: at most `most_calls` at once, on MOST_CONNECTIONS."""

    def __init__(self, path: Path, methods: Methods, *, most_calls: int, tasks: Tasks) -> None:
        self._path = path
        self._methods = methods
        self._most_calls = most_calls
        self._connections = tasks.passing("device-connection")
        self._share = LoopShare(PIECES_IN_A_TURN)
        self._open = 0
        self._full = False
        self._loading = asyncio.Lock()
        self._claim: Claim | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Server | None = None
        self._server: GrpcServer | None = None

    def claim(self, before: Callable[[], object] = lambda: None) -> None:
        """Claim the socket, which only its owner may open and which does not answer yet. Make its directory.

        `before` is called once nobody else serves there. Raises `Refused` as `host.sockets.claim` does.
        """
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

        def bind(at: str) -> None:
            listener.bind(at)
            listener.listen(BACKLOG)

        try:
            self._claim = claim(self._path, bind, before=before)
        except BaseException:
            listener.close()
            raise
        self._listener = listener

    async def start(self) -> None:
        """Start answering on the claimed socket."""
        assert self._listener is not None
        self._accepting = await asyncio.start_server(self._accepted, sock=self._listener, backlog=BACKLOG)

    async def stop(self) -> None:
        accepting, self._accepting = self._accepting, None
        if accepting is not None and self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
        await self._connections.stop()
        # asyncio closes transports in later turns of the loop; the socket must not be removed under them.
        for _ in range(TURNS_TO_END):
            await asyncio.sleep(0)
        if accepting is not None:
            accepting.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._accepting is None:
            writer.transport.abort()
            return
        if self._open >= MOST_CONNECTIONS:
            if not self._full:
                log.error(
                    "%s: the limit of %d connections is reached; further ones are closed",
                    self._path,
                    self._open,
                )
            self._full = True
            writer.transport.abort()
            return
        self._open += 1
        task = self._connections.start(self._hand_on(reader, writer))
        task.add_done_callback(lambda _: self._closed(writer))

    def _closed(self, writer: asyncio.StreamWriter) -> None:
        self._open -= 1
        self._full = False
        writer.transport.abort()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes between a peer and grpcio's server until one of them closes."""
        try:
            server = await self._loaded()
            inner_reader, inner_writer = await asyncio.open_unix_connection(server.address)
            try:
                ways = [
                    asyncio.create_task(self._carry(reader, inner_writer)),
                    asyncio.create_task(self._carry(inner_reader, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
            finally:
                await _cut(inner_writer)
            writer.close()
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(LINGER):
                    await writer.wait_closed()
        finally:
            await _cut(writer)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_PIECE):
                await self._share.turn()
                if sink.is_closing():
                    return
                sink.write(data)
                await sink.drain()

    async def _loaded(self) -> GrpcServer:
        async with self._loading:
            if self._server is None:
                # grpcio is loaded only when somebody calls: it costs 23 MB.
                make = await asyncio.to_thread(_load)
                server = make(self._methods, most_calls=self._most_calls)
                try:
                    await server.start(self._path.parent)
                except BaseException:
                    await server.stop()
                    raise
                self._server = server
            return self._server


async def _cut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _load() -> type[GrpcServer]:
    from engine.devices.grpc_server import GrpcServer

    return GrpcServer
