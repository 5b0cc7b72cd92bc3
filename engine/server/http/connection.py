"""Serves one HTTP/1.1 connection: h11 parses the bytes, this module reads and writes them within bounds.

A peer may be slow, hostile or gone. Each request has a deadline to arrive whole and limits on its head and
its body. A peer that keeps sending waits before each further step for its turn of the event loop, as all
such peers of a listener do. The first request of a connection does not wait, so that a new peer is served
even then. A peer that reads nothing of an answer for a while does not get the rest. Whatever goes wrong
ends this connection only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, nullcontext
from http import HTTPStatus

import h11
import msgspec

from engine.api.errors import InvalidInput
from engine.host.connection_limiter import ConnectionSlot
from engine.host.loop_share import LoopShare
from engine.server.http.exchange import Answer, Request, Response, Takeover, failure
from engine.server.http.request_metrics import ServerRequestMetrics
from engine.server.http.write_timeout import run_while_peer_reads

MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
KEPT_BODY = 1024  # no request needs more; the rest is dropped as it comes
REQUEST_DEADLINE = 10.0
IDLE_DEADLINE = 60.0
WRITE_DEADLINE = 30.0
READ = 4 * 1024  # h11 limits what is incomplete, so a read bounds how far a head can exceed MAX_HEAD
MAX_LINES = 256  # of a head: h11 takes 3 µs for each, at once
EVENTS_IN_A_TURN = 64  # of h11, 8 µs each
PIECE = 64 * 1024

MAX_FIELDS = 32

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_PHRASES = {int(status): status.phrase for status in HTTPStatus}

Handler = Callable[[Request], Awaitable[Answer]]


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Bound what a peer may take of the server; deadlines are seconds.

    `request_deadline` is for one request to arrive whole, `idle_deadline` for the next one to begin, and
    `live_deadline` for the peer to take more of an answer that comes bit by bit. `max_head` is in bytes,
    `max_fields` the number of fields in a query.
    """

    request_deadline: float = REQUEST_DEADLINE
    idle_deadline: float = IDLE_DEADLINE
    live_deadline: float = WRITE_DEADLINE
    max_head: int = MAX_HEAD
    max_fields: int = MAX_FIELDS


USUAL_LIMITS = ConnectionLimits()


class Connection:
    """Serve requests from one peer until it disconnects, makes an error or idles too long.

    `share` is the part of the event loop that the listener's connections have together. `metrics` count the
    requests.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        handler: Handler,
        trusted: bool,
        slot: ConnectionSlot,
        share: LoopShare,
        metrics: ServerRequestMetrics | None = None,
        limits: ConnectionLimits = USUAL_LIMITS,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._trusted = trusted
        self._slot = slot
        self._share = share
        self._metrics = metrics
        self._events = 0
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_head)

    async def serve(self) -> None:
        """Serve requests until the connection is over; the caller closes the transport."""
        try:
            while await self._exchange():
                self._http.start_next_cycle()
                await self._share.turn()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
        except TimeoutError:
            await self._refuse(408, "the request did not arrive in time")
        except (ConnectionError, h11.LocalProtocolError) as error:
            error.with_traceback(None)  # the reader keeps it: a cycle with OpenSSL's memory in it
            return

    async def _exchange(self) -> bool:
        """Handle one request; return whether another may follow."""
        self._slot.set_idle()
        first = await self._first_bytes()
        if not first:
            return False
        async with asyncio.timeout(self._limits.request_deadline):
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            body, size = b"", 0
            while not isinstance(part := await self._next_event(), h11.EndOfMessage):
                if not isinstance(part, h11.Data):
                    return False
                # The rest is still read, up to MAX_BODY: a connection that is closed with unread data is
                # reset, and the peer would lose the answer.
                body += bytes(part.data[: KEPT_BODY - len(body)])
                size += len(part.data)
                if size > MAX_BODY:
                    await self._send(failure(413, f"bodies over {MAX_BODY} bytes are refused"), close=True)
                    return False
        try:
            request = Request.parse(
                event.method.decode("ascii"),
                event.target.decode("ascii"),
                trusted=self._trusted,
                headers=tuple((name.decode(), value.decode("latin-1")) for name, value in event.headers),
                most_fields=self._limits.max_fields,
                body=body,
            )
        except InvalidInput as error:
            await self._send(failure(400, str(error)))
        else:
            with self._metrics.serving(request.method, request.path) if self._metrics else nullcontext():
                if not await self._answer(request):
                    return False
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _answer(self, request: Request) -> bool:
        """Answer one request; false if the connection has become something else meanwhile."""
        answer = await self._handler(request)
        if isinstance(answer, Takeover):
            await self._hand_over(answer)
            return False
        # A client that hoped for an upgrade may send bytes of the other protocol, which are no request.
        refused_upgrade = bool(request.header("upgrade"))
        await self._send(answer, head=request.method == "HEAD", close=refused_upgrade or answer.last)
        return True

    async def _first_bytes(self) -> bool:
        """Wait for the first bytes of a request, longer than for the rest of one."""
        if self._http.trailing_data[0]:
            return True
        try:
            async with asyncio.timeout(self._limits.idle_deadline):
                data = await self._reader.read(READ)
        except TimeoutError:
            return False
        self._http.receive_data(data)
        return bool(data)

    async def _next_event(self) -> object:
        while True:
            self._events += 1
            if self._events % EVENTS_IN_A_TURN == 0:
                await self._share.turn()
            if self._http.their_state is h11.IDLE:
                self._check_lines(self._http.trailing_data[0])
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            data = await self._reader.read(READ)
            await self._share.turn()
            self._http.receive_data(data)

    @staticmethod
    def _check_lines(head: bytes) -> None:
        end = _END_OF_HEAD.search(head)
        if head.count(b"\n", 0, end.start() if end else len(head)) > MAX_LINES:
            raise h11.RemoteProtocolError(f"a head of more than {MAX_LINES} lines", error_status_hint=431)

    async def _hand_over(self, takeover: Takeover) -> None:
        try:
            await self._write(
                self._http.send(h11.InformationalResponse(status_code=101, headers=list(takeover.headers)))
            )
            await takeover.converse(self._http.trailing_data[0], self._reader, self._writer)
        finally:
            takeover.close()

    async def _send(self, response: Response, *, head: bool = False, close: bool = False) -> None:
        body = response.body
        if isinstance(body, AsyncGenerator):
            async with aclosing(body):
                await self._write(self._head(response, close=True))
                if not head:
                    await self._send_live(body)
        else:
            pieces = _cut(body) if isinstance(body, bytes) else body
            await self._send_pieces(self._head(response, close=close), () if head else pieces)

    def _head(self, response: Response, *, close: bool) -> bytes | None:
        headers = [("content-type", response.content_type), *response.headers]
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(response.body))))
        if close:
            headers.append(("connection", "close"))
        reason = _PHRASES.get(response.status, "")
        return self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason))

    async def _send_pieces(self, head: bytes | None, pieces: Iterable[bytes]) -> None:
        """Send the head and the pieces, many small pieces as one."""
        pending = [head]
        waiting = 0
        for piece in pieces:
            pending.append(self._http.send(h11.Data(data=piece)))
            waiting += len(piece)
            if waiting >= PIECE:
                await self._write(b"".join(filter(None, pending)))
                pending.clear()
                waiting = 0
                # Also if nothing had to wait: a large answer must not hold the loop.
                await asyncio.sleep(0)
        pending.append(self._http.send(h11.EndOfMessage()))
        await self._write(b"".join(filter(None, pending)))

    async def _send_live(self, pieces: AsyncGenerator[bytes, None]) -> None:
        """Send each piece as it comes. A closed connection ends it at once, even between rare pieces."""
        sending = asyncio.create_task(self._send_each(pieces))
        closing = asyncio.create_task(self._wait_for_close())
        try:
            await asyncio.wait({sending, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ConnectionResetError("the peer has disconnected")
            sending.result()
        finally:
            for task in (sending, closing):
                task.cancel()
            await asyncio.gather(sending, closing, return_exceptions=True)

    async def _send_each(self, pieces: AsyncGenerator[bytes, None]) -> None:
        async for piece in pieces:
            await self._write(self._http.send(h11.Data(data=piece)), self._limits.live_deadline)
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _wait_for_close(self) -> None:
        """Wait until the peer closes. Its bytes are dropped, up to a limit, since no further request is
        answered.
        """
        dropped = 0
        while dropped <= MAX_HEAD and (data := await self._reader.read(READ)):
            dropped += len(data)

    async def _write(self, data: bytes | None, deadline: float = 0.0) -> None:
        if not data:
            return
        if self._writer.is_closing():
            raise ConnectionResetError("the peer has disconnected")
        self._writer.write(data)
        self._slot.set_idle()
        if not await run_while_peer_reads(self._writer, self._writer.drain, deadline or WRITE_DEADLINE):
            self._writer.transport.abort()
            raise ConnectionAbortedError("the peer does not read")

    async def _refuse(self, status: int, message: str) -> None:
        """Send the reason for closing the connection, if the peer still reads."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            try:
                await self._send(failure(status, message), close=True)
            except (ConnectionError, h11.LocalProtocolError):
                return


def _cut(body: bytes) -> Iterable[bytes]:
    """Split a body, so that only as much of it is copied as the peer reads."""
    whole = memoryview(body)
    return (bytes(whole[at : at + PIECE]) for at in range(0, len(body), PIECE))
