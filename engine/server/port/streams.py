"""Proxies sessions of exec, attach and port-forward to the runtime's own URL.

The request is sent to the runtime without the user's credentials. If the runtime switches protocols, bytes
are copied both ways; otherwise its response is returned. An idle session ends after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit

import h11

from engine.api.errors import Refused, Unavailable
from engine.server.http.exchange import Answer, Headers, Request, Response, Takeover
from engine.server.port.websocket_token import without_tokens

CONNECT_SECONDS = 10.0
HEAD_SECONDS = 30.0
MAX_HEAD = 16 * 1024
MAX_REFUSAL = 64 * 1024
READ = 4 * 1024  # of the runtime's answer in one turn of the event loop
PIECE = 16 * 1024  # of a session, each way, in one turn of the event loop: up to 1,800 frames of SPDY
# Hop-by-hop headers (RFC 9110, section 7.6.1), and the credentials, which are meant for this node only.
NOT_PASSED_ON = frozenset(
    ("host", "authorization", "connection", "content-length", "transfer-encoding", "expect", "te", "trailer")
)
NO_UPGRADE = "Upgrade request required\n"


async def handed_to(url: str, request: Request, *, idle: float) -> Answer:
    """Open the session at the runtime's `url`; without traffic for `idle` seconds it ends.

    Raises Unavailable if the runtime does not answer, and Refused for a malformed response.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused("expected an http URL from the runtime", subject=url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if context else 80), ssl=context
            )
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"error dialing backend: {error}", subject=parts.netloc) from error
    session = _Session(reader, writer, idle)
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            return await session.ask(request, parts.netloc, target)
    except (OSError, TimeoutError, h11.ProtocolError) as error:
        session.close()
        raise Unavailable(f"no response from the runtime: {error}", subject=parts.netloc) from error
    except BaseException:
        session.close()
        raise


class _Session:
    """Hold the connection to the runtime."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: float) -> None:
        self._reader = reader
        self._writer = writer
        self._idle = idle
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    async def ask(self, request: Request, host: str, target: str) -> Answer:
        # Hop-by-hop headers are this proxy's own; the user's credentials are none of the runtime's business.
        headers = [("host", host), ("connection", "Upgrade")]
        kept = ((name, value) for name, value in request.headers if name not in NOT_PASSED_ON)
        headers += without_tokens(tuple(kept))
        head = h11.Request(method=request.method, target=target, headers=headers)
        self._writer.write((self._http.send(head) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()
        answer = await self._next()
        if isinstance(answer, h11.InformationalResponse) and answer.status_code == 101:
            return Takeover(_headers(answer), self._converse, self.close)
        # 100 Continue and the like come before the answer.
        while isinstance(answer, h11.InformationalResponse):
            answer = await self._next()
        if not isinstance(answer, h11.Response):
            raise h11.RemoteProtocolError("expected the head of an HTTP response")
        body = bytearray()
        while len(body) < MAX_REFUSAL and isinstance(piece := await self._next(), h11.Data):
            body += piece.data
        self.close()
        kind = dict(_headers(answer)).get("content-type", "text/plain; charset=utf-8")
        return Response(answer.status_code, kind, bytes(body))

    def close(self) -> None:
        self._writer.transport.abort()

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ))
            await asyncio.sleep(0)
        return event

    async def _converse(
        self, received: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Copy bytes until one side closes or the session is idle."""
        self._writer.write(received)
        # Bytes that the runtime sent right behind its head.
        writer.write(self._http.trailing_data[0])
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self._idle) as patience:
                ways = [
                    asyncio.create_task(self._pass_on(reader, self._writer, patience)),
                    asyncio.create_task(self._pass_on(self._reader, writer, patience)),
                ]
                try:
                    # One closed side ends the session: SPDY and WebSockets have ends of streams of their own.
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, patience: asyncio.Timeout
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(PIECE):
            if sink.is_closing():
                return
            sink.write(data)
            await sink.drain()
            await asyncio.sleep(0)
            # A timeout that has fired cannot be moved any longer.
            if not patience.expired():
                patience.reschedule(loop.time() + self._idle)


def _headers(answer: h11.InformationalResponse | h11.Response) -> Headers:
    return tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in answer.headers)
