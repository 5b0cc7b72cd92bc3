"""The port itself: connections, their handshakes, and each request on its way through the two questions.

Nothing is read but a bounded head and body, and nothing is done, before it is known who asks and that they
may. A bounded number of strangers is inside; who has been silent longest makes room for who comes. Answers
that go on for as long as a user wants (logs, sessions) are counted apart: strangers can't end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path

from engine.api.errors import KubengineError
from engine.host.crowd import Crowd, Place
from engine.server.connection import Connection
from engine.server.exchange import Answer, Request, Takeover, plain
from engine.server.port import routes
from engine.server.port.access import needs, no_answer, refusal
from engine.server.port.authentication import Authentication
from engine.server.port.authorization import Authorization, NoReview
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

_Ask = Callable[[Request], Awaitable[Answer]]
_Answer = Callable[[ssl.SSLObject, Request], Awaitable[Answer]]

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
        authorities = config.authentication.x509.client_ca_file
        tls = ServingTLS(
            lambda: view.serving_certificate.pair,
            client_authorities=Path(authorities) if authorities else None,
            min_version=config.tls_min_version,
            ciphers=config.tls_cipher_suites,
        )
        await view.serving_certificate.start()
        if view.serving_certificate.pair is not None:
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

    async def _accept(self, tls: ServingTLS, answer: _Answer) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                log.error("no connection can be taken: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            task = loop.create_task(self._serve(peer, tls, answer), name="port connection")
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, peer: socket.socket, tls: ServingTLS, answer: _Answer) -> None:
        task = asyncio.current_task()
        assert task is not None
        place = self._crowd.enter(partial(_drop, task))
        if place is None:
            peer.close()
            return
        try:
            opened = await _shake_hands(peer, tls)
            if opened is not None:
                await self._converse(*opened, place, answer)
        except asyncio.CancelledError:
            return
        finally:
            place.leave()
            self._sessions.discard(task)

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: Place, answer: _Answer
    ) -> None:
        session: ssl.SSLObject = writer.get_extra_info("ssl_object")
        try:
            await Connection(
                reader,
                writer,
                handler=partial(self._in_turn, place, partial(answer, session)),
                trusted=False,
                place=place,
                live_deadline=float(self._view.config.streaming_connection_idle_timeout),
                max_head=MAX_HEAD,
                max_fields=MAX_FIELDS,
            ).serve()
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _in_turn(self, place: Place, ask: _Ask, request: Request) -> Answer:
        """Work is bounded, and what goes on for long is counted apart."""
        place.work()
        if self._crowd.at_work > MAX_AT_WORK and not request.asks_health:
            return plain(503, f"{MAX_AT_WORK} requests are being answered; try again\n")
        answer = await ask(request)
        if not _goes_on(answer):
            return answer
        if len(self._sessions) >= MAX_SESSIONS:
            await _give_up(answer)
            return plain(429, f"{MAX_SESSIONS} sessions are open\n")
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        place.leave()
        return answer

    async def _answer(
        self,
        authentication: Authentication,
        authorization: Authorization,
        session: ssl.SSLObject,
        request: Request,
    ) -> Answer:
        """401 for whom nobody knows, 403 for who may not, in the kubelet's words; else what was asked for."""
        try:
            user = await authentication.user(session, request.header("authorization"))
        except KubengineError as error:
            log.error("a token was not reviewed: %s", error)
            return plain(401, UNAUTHORIZED)
        if user is None:
            return plain(401, UNAUTHORIZED)
        needed = needs(request.method, request.path)
        try:
            allowed = await authorization.allows(user, needed)
        except NoReview as error:
            log.error("access was not reviewed: %s", error.__cause__)
            return plain(500, no_answer(user, needed, error.subresource))
        if not allowed:
            return plain(403, refusal(user, needed))
        return await routes.answer(self._view, request)


def _drop(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _shake_hands(
    peer: socket.socket, tls: ServingTLS
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """None for a peer that speaks no TLS of ours, or is too slow about it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        for option in KEEP_ALIVE:
            peer.setsockopt(*option)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            sock=peer,
            ssl=tls.context(),
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )
    except (KubengineError, OSError) as error:
        log.debug("no handshake: %s", error)
        peer.close()
        return None
    except BaseException:
        peer.close()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _goes_on(answer: Answer) -> bool:
    return isinstance(answer, Takeover) or isinstance(answer.body, AsyncGenerator)


async def _give_up(answer: Answer) -> None:
    if isinstance(answer, Takeover):
        answer.close()
    elif isinstance(answer.body, AsyncGenerator):
        await answer.body.aclose()
