"""The port itself: connections, their handshakes, and each request on its way through the two questions.

Nothing is read but a bounded head and body, and nothing is done, before it is known who asks and that they may.
A bounded number of strangers is inside; who has been silent longest makes room for who comes. Answers that
go on for as long as a user wants (logs, sessions) are counted apart, so that strangers can't end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator
from functools import partial

from engine.api.errors import KubengineError
from engine.host.crowd import Crowd, Place
from engine.server.connection import Connection
from engine.server.exchange import Answer, Request, Response, Takeover, plain
from engine.server.port import routes
from engine.server.port.access import needs, no_answer, refusal
from engine.server.port.authentication import Authentication
from engine.server.port.authorization import Authorization, NoReview
from engine.server.port.certificate import serving_files
from engine.server.port.serving_tls import ServingTLS
from engine.server.tcp import bind_tcp
from engine.server.view import PortNode

MAX_STRANGERS = 128
MAX_AT_WORK = 64
MAX_SESSIONS = 256
MAX_HEAD = 64 * 1024
MAX_FIELDS = 1024
HANDSHAKE_SECONDS = 10.0
CLOSE_SECONDS = 2.0
PAUSE_SECONDS = 0.5
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
)
UNAUTHORIZED = "Unauthorized"

log = logging.getLogger("kubengine.port")


class SecurePort:
    """Listens from `bind` on, answers from `start` on."""

    def __init__(self, view: PortNode, address: str, port: int) -> None:
        self._view = view
        self._where = (address, port)
        self._socket: socket.socket | None = None
        self._crowd = Crowd(MAX_STRANGERS)
        self._sessions: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._authentication: Authentication | None = None
        self._authorization: Authorization | None = None

    def bind(self) -> None:
        """Takes the port; who connects waits for `start`. Raises `Refused` where it is taken."""
        if self._socket is None:
            self._socket = bind_tcp(*self._where, "port")

    async def start(self) -> None:
        """Raises InvalidInput for a configuration that makes no sense, Refused for what the machine lacks."""
        config, view = self._view.config, self._view
        self.bind()
        self._authentication = authentication = Authentication(config.authentication, view.api)
        self._authorization = authorization = Authorization(config.authorization, view.name, view.api)
        tls = ServingTLS(
            await serving_files(config, view.root, view.name, view.host_ip),
            min_version=config.tls_min_version,
            ciphers=config.tls_cipher_suites,
        )
        if not config.server_tls_bootstrap:
            tls.context()
        work = self._accept(tls, partial(self._answer, authentication, authorization))
        self._accepting = asyncio.create_task(work, name="port")

    async def stop(self) -> None:
        """Closes it and ends every connection; safe to call twice."""
        tasks = [task for task in (self._accepting, *self._connections) if task is not None]
        self._accepting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for part in (self._authentication, self._authorization):
            if part is not None:
                part.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
