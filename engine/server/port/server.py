"""Serves the node's own port: connections, their handshakes, and each request through authentication and
authorization.

Before a client is authenticated and authorized, only a bounded head and body are read, and nothing else is
done. The number of connections is bounded: the longest-idle one is closed for a new client. Answers that
last as long as the user wants (logs, sessions) are counted separately, so that new clients cannot end them.

A connection ends when the certificate of its client expires. It also ends when the client CAs change, which
the next connection or request detects.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from traceback import clear_frames

import msgspec
from msgspec.structs import replace

from engine.api.errors import KubengineError
from engine.host.connection_limiter import ConnectionLimiter, ConnectionSlot
from engine.host.loop_share import LoopShare
from engine.server.http.connection import WRITE_DEADLINE, Connection, ConnectionLimits
from engine.server.http.exchange import Answer, Request, Takeover, plain
from engine.server.http.request_metrics import ServerRequestMetrics
from engine.server.http.scheduling import in_turn
from engine.server.http.tcp import bind_tcp
from engine.server.http.write_timeout import CLOSE_SECONDS, close_when_read
from engine.server.interfaces.node import PortNode
from engine.server.port import routes
from engine.server.port.access import needs, no_answer, refusal
from engine.server.port.authentication import ANONYMOUS, Authentication
from engine.server.port.authorization import Authorization, NoReview
from engine.server.port.serving_tls import ServingTLS
from engine.server.routes import Routes

MAX_CONNECTIONS = 128
MAX_SESSIONS = 256
STEPS_IN_A_TURN = 4  # of the event loop
MAX_HEAD = 64 * 1024
MAX_FIELDS = 1024
HANDSHAKE_SECONDS = 10.0
PAUSE_SECONDS = 0.5
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
)
_UNAUTHORIZED = replace(plain(401, "Unauthorized"), last=True)

_Answer = Callable[[ssl.SSLObject, Request], Awaitable[Answer]]

log = logging.getLogger("kubengine.port")


class SecurePort:
    """Serve the node's own port: listen from `bind` on, answer from `start` on. `shared` are the routes of
    the other listeners.
    """

    def __init__(
        self,
        view: PortNode,
        address: str,
        port: int,
        *,
        shared: Routes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._view = view
        self._shared = shared or Routes(view)
        self._clock = clock
        self._where = (address, port)
        self._socket: socket.socket | None = None
        self._limiter = ConnectionLimiter(MAX_CONNECTIONS)
        self._metrics = ServerRequestMetrics(view.registry, "readwrite")
        self._share = LoopShare(STEPS_IN_A_TURN)
        self._sessions: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._presented: dict[asyncio.Task[None], Presented] = {}
        self._accepting: asyncio.TimerHandle | None = None
        self._authentication: Authentication | None = None
        self._authorization: Authorization | None = None

    def bind(self) -> None:
        """Bind the port; clients wait for `start`. Raise `Refused` if it is in use."""
        if self._socket is None:
            self._socket = bind_tcp(*self._where, "port")

    async def start(self) -> None:
        """Start serving. Raise InvalidInput for a wrong configuration, Refused if the machine cannot."""
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
            curves=config.tls_curve_preferences,
        )
        await view.serving_certificate.start()
        if view.serving_certificate.pair is not None:
            tls.context()
        self._listen(tls, partial(self._answer, authentication, authorization))

    async def stop(self) -> None:
        """Close the port and end every connection; safe to call twice."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
        await asyncio.sleep(0)  # a task that is cancelled before it has begun would not close its connection
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for asked in (self._authentication, self._authorization):
            if asked is not None:
                asked.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _listen(self, tls: ServingTLS, answer: _Answer) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._accept, tls, answer)

    def _accept(self, tls: ServingTLS, answer: _Answer) -> None:
        """Take one connection in a turn of the event loop: a handshake costs a millisecond."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            peer, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("cannot accept connections: %s", error)
            # EMFILE above all: a listening socket stays readable, and the loop would spin without a pause.
            loop.remove_reader(self._socket)
            self._accepting = loop.call_later(PAUSE_SECONDS, self._listen, tls, answer)
            return
        peer.setblocking(False)
        task = loop.create_task(self._serve(peer, tls, answer), name="port connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, peer: socket.socket, tls: ServingTLS, answer: _Answer) -> None:
        task = asyncio.current_task()
        assert task is not None
        # Before the handshake, which is the most expensive part of an unknown client.
        slot = self._limiter.enter(partial(_drop, task))
        if slot is None:
            peer.close()
            return
        try:
            opened = await _shake_hands(peer, tls)
            # `tls.context()` may just have read other authorities.
            self._end_distrusted(tls)
            if opened is not None:
                await self._converse(*opened, slot, tls, answer)
        except (asyncio.CancelledError, TimeoutError):
            return
        finally:
            slot.release()
            self._sessions.discard(task)
            self._presented.pop(task, None)

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        slot: ConnectionSlot,
        tls: ServingTLS,
        answer: _Answer,
    ) -> None:
        session: ssl.SSLObject = writer.get_extra_info("ssl_object")
        shown = presented(session, tls.authorities)
        task = asyncio.current_task()
        assert task is not None
        if shown is not None:
            self._presented[task] = shown

        async def answered(request: Request) -> Answer:
            tls.context()
            self._end_distrusted(tls)
            if shown is not None and not shown.holds(self._clock(), tls.authorities):
                raise ConnectionAbortedError("its certificate is no longer valid")
            given = await in_turn(self._limiter, slot, request, partial(answer, session), plain)
            return await self._counted(given, task, slot)

        try:
            # A session outlives its authentication only until the client's certificate expires.
            async with asyncio.timeout(None if shown is None else shown.until - self._clock()):
                await Connection(
                    reader,
                    writer,
                    handler=answered,
                    trusted=False,
                    slot=slot,
                    share=self._share,
                    metrics=self._metrics,
                    limits=ConnectionLimits(
                        live_deadline=float(self._view.config.streaming_connection_idle_timeout),
                        max_head=MAX_HEAD,
                        max_fields=MAX_FIELDS,
                    ),
                ).serve()
                await close_when_read(writer, WRITE_DEADLINE)
        finally:
            writer.transport.abort()

    async def _counted(self, answer: Answer, task: asyncio.Task[None], slot: ConnectionSlot) -> Answer:
        """Count long-running requests separately."""
        if not _goes_on(answer):
            return answer
        if len(self._sessions) >= MAX_SESSIONS:
            await _give_up(answer)
            return plain(429, f"{MAX_SESSIONS} sessions are open\n")
        self._sessions.add(task)
        # A long session frees its slot for new clients, and cannot be closed for one.
        slot.release()
        return answer

    def _end_distrusted(self, tls: ServingTLS) -> None:
        now = self._clock()
        for task, shown in self._presented.items():
            if not shown.holds(now, tls.authorities) and task is not asyncio.current_task():
                task.cancel()

    async def _answer(
        self,
        authentication: Authentication,
        authorization: Authorization,
        session: ssl.SSLObject,
        request: Request,
    ) -> Answer:
        """Return the response: in the kubelet's words, 401 for an unknown user and 403 for a user without the
        right. Both end the connection of an unknown client, which gets one answer per handshake.
        """
        try:
            user = await authentication.user(session, request)
        except KubengineError as error:
            # A kubelet answers 401 as well if the API server cannot be asked.
            log.error("a token was not reviewed: %s", error)
            return _UNAUTHORIZED
        if user is None:
            return _UNAUTHORIZED
        needed = needs(request.method, request.path)
        try:
            allowed = await authorization.allows(user, needed)
        except NoReview as error:
            log.error("access was not reviewed: %s", error.__cause__)
            return plain(500, no_answer(user, needed, error.subresource))
        if not allowed:
            return replace(plain(403, refusal(user, needed)), last=user is ANONYMOUS)
        return await routes.answer(self._view, self._shared, request)


def _drop(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _shake_hands(
    peer: socket.socket, tls: ServingTLS
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Complete the TLS handshake; return None for a peer that fails it or is too slow.

    The frames of a failure are cleared: they keep OpenSSL's memory in a cycle, which the garbage collector
    would find late, as it does not know how large it is.
    """
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
        log.debug("TLS handshake failed: %s", error)
        clear_frames(error.__traceback__)
        peer.close()
        return None
    except BaseException as error:
        clear_frames(error.__traceback__)
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


class Presented(msgspec.Struct, frozen=True):
    """Hold a certificate that is valid before `until` (Unix seconds), and while `authorities` (PEM) are the
    trusted client CAs.
    """

    until: float
    authorities: bytes

    def holds(self, now: float, authorities: bytes) -> bool:
        return now < self.until and self.authorities == authorities


def presented(session: ssl.SSLObject, authorities: bytes) -> Presented | None:
    """Return the certificate, or None if the client showed none."""
    certificate = session.getpeercert()
    if not certificate:
        return None
    return Presented(ssl.cert_time_to_seconds(str(certificate["notAfter"])), authorities)
