"""Runs the agent's HTTP listeners.

- `readOnlyPort` on `server.readOnlyAddress` (loopback by default): read-only, without authentication, and
  without what a kubelet serves only to authenticated clients (the configuration, for example).
- `healthzPort` on `healthzBindAddress`: `/healthz` only.
- `port` on `address`: TLS, for authenticated and authorized clients (`engine.server.port`), if it is open.
- `kubengine.sock` in the root directory, mode 0600: the same pages, and commands.

Each listener holds a bounded number of connections; when it is full, the connection that was idle longest is
closed for the new peer. A few slots for requests are reserved for `/healthz`.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from engine.host.connection_limiter import ConnectionLimiter, ConnectionSlot
from engine.host.loop_share import LoopShare
from engine.host.sockets import Claim, claim
from engine.server.http.connection import WRITE_DEADLINE, Connection, Handler
from engine.server.http.exchange import Answer, Request, failure
from engine.server.http.request_metrics import ServerRequestMetrics
from engine.server.http.scheduling import in_turn
from engine.server.http.tcp import BACKLOG, bind_tcp
from engine.server.http.write_timeout import close_when_read
from engine.server.interfaces.node import ServedNode
from engine.server.routes import Routes

MAX_CONNECTIONS = 128
ACCEPTED_AT_ONCE = 16
"""Few compared with MAX_CONNECTIONS, so that new connections cannot displace peers that are about to be
read."""
STEPS_IN_A_TURN = 4  # of the event loop, for each listener


class _Listener(msgspec.Struct):
    """Hold a bound socket, its request handler and its connections."""

    socket: socket.socket
    handler: Handler
    trusted: bool
    metrics: ServerRequestMetrics | None = None
    limiter: ConnectionLimiter = msgspec.field(default_factory=lambda: ConnectionLimiter(MAX_CONNECTIONS))
    share: LoopShare = msgspec.field(default_factory=lambda: LoopShare(STEPS_IN_A_TURN))
    connections: set[asyncio.Task[None]] = msgspec.field(default_factory=set)
    closed: bool = False


class OwnPort(Protocol):
    """Serve the node's own port; `engine.server.port.server.SecurePort` implements it."""

    def bind(self) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class HttpServer:
    """Serve a node's HTTP API from its event loop.

    `socket_path` is the admin socket and `port` the node's own port, or None; `routes` are those that it
    shares with the port. Ports that are 0, and the read-only port with `enableServer: false`, stay closed, as
    in the kubelet.
    """

    def __init__(
        self,
        view: ServedNode,
        *,
        socket_path: Path | None,
        port: OwnPort | None = None,
        routes: Routes | None = None,
    ) -> None:
        self._view = view
        self._routes = routes or Routes(view)
        self._own_port = port
        self._socket_path = socket_path
        self._claim: Claim | None = None
        self._ports: list[tuple[socket.socket, Handler]] | None = None
        self._servers: list[asyncio.Server] = []
        self._listeners: list[_Listener] = []

    def bind(self) -> None:
        """Bind the ports; clients that connect wait for `start`. Raises `Refused` naming a port in use."""
        config, section = self._view.config, self._view.kubengine_config.server
        self._ports = []
        if config.healthz_port:
            bound = bind_tcp(config.healthz_bind_address, config.healthz_port, "healthzPort")
            self._ports.append((bound, self._routes.answer_health))
        if config.enable_server and config.read_only_port:
            bound = bind_tcp(section.read_only_address, config.read_only_port, "readOnlyPort")
            self._ports.append((bound, self._routes.answer_read_only))
        if self._own_port is not None:
            self._own_port.bind()

    async def start(self) -> None:
        """Open the listeners. Raises `Refused` naming an address that is not available."""
        try:
            if self._ports is None:
                self.bind()
            if self._socket_path is not None:
                bound = self._bind_unix(self._socket_path)
                await self._open(bound, self._routes.answer, trusted=True)
            metrics = ServerRequestMetrics(self._view.registry, "readonly")
            while self._ports:
                await self._open(*self._ports.pop(0), trusted=False, metrics=metrics)
            if self._own_port is not None:
                await self._own_port.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the listeners and the connections; safe to call twice."""
        if self._own_port is not None:
            await self._own_port.stop()
        # Connections that asyncio has accepted already are closed when their task starts.
        for listener in self._listeners:
            listener.closed = True
        for server in self._servers:
            server.close()
        tasks = [task for listener in self._listeners for task in listener.connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        for listener in self._listeners:
            listener.socket.close()
        for bound, _ in self._ports or ():
            bound.close()
        self._ports = None
        self._servers.clear()
        self._listeners.clear()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    async def _open(
        self,
        bound: socket.socket,
        handler: Handler,
        *,
        trusted: bool,
        metrics: ServerRequestMetrics | None = None,
    ) -> None:
        listener = _Listener(bound, handler, trusted, metrics)
        self._listeners.append(listener)
        self._servers.append(
            await asyncio.start_server(partial(self._accept, listener), sock=bound, backlog=ACCEPTED_AT_ONCE)
        )
        # asyncio accepts as many connections in one turn as its backlog, and passes that on to listen(2).
        bound.listen(BACKLOG)

    async def _accept(
        self, listener: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        listener.connections.add(task)
        slot = listener.limiter.enter(writer.transport.abort) if not listener.closed else None
        try:
            if slot is not None:
                await _converse(listener, reader, writer, slot)
        except asyncio.CancelledError:
            return
        finally:
            writer.transport.abort()
            listener.connections.discard(task)
            if slot is not None:
                slot.release()

    def _bind_unix(self, path: Path) -> socket.socket:
        bound = socket.socket(socket.AF_UNIX)

        def bind(at: str) -> None:
            bound.bind(at)
            bound.listen(BACKLOG)  # so that another process that claims it finds it in use

        try:
            self._claim = claim(path, bind)
        except BaseException:
            bound.close()
            raise
        bound.setblocking(False)
        return bound


async def _converse(
    listener: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slot: ConnectionSlot
) -> None:
    async def answered(request: Request) -> Answer:
        return await in_turn(listener.limiter, slot, request, listener.handler, failure)

    connection = Connection(
        reader,
        writer,
        handler=answered,
        trusted=listener.trusted,
        slot=slot,
        share=listener.share,
        metrics=listener.metrics,
    )
    await connection.serve()
    await close_when_read(writer, WRITE_DEADLINE)
