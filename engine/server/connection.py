"""One HTTP/1.1 connection: h11 says what the bytes mean, this file moves them within bounds.

A peer may be slow, hostile or gone. Each request has a deadline to arrive whole, a limit on its head
and its body; each piece of an answer has a deadline to be taken. Whatever goes wrong ends this
connection only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

import h11

from engine.api.errors import InvalidInput
from engine.host.crowd import Place
from engine.server.routes import Request, Response, failure

MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
REQUEST_DEADLINE = 10.0
IDLE_DEADLINE = 60.0
WRITE_DEADLINE = 30.0
READ = 4 * 1024  # h11 limits what is incomplete, so a read bounds how far a head can exceed MAX_HEAD
PIECE = 64 * 1024

Handler = Callable[[Request], Awaitable[Response]]


class Connection:
    """Serves requests from one peer until it goes, errs or idles too long."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        handler: Handler,
        trusted: bool,
        place: Place,
        request_deadline: float = REQUEST_DEADLINE,
        idle_deadline: float = IDLE_DEADLINE,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._trusted = trusted
        self._place = place
        self._request_deadline = request_deadline
        self._idle_deadline = idle_deadline
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    async def serve(self) -> None:
        """Returns when the connection is over; the transport is closed by the caller."""
        try:
            while await self._exchange():
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
        except TimeoutError:
            await self._refuse(408, "the request did not arrive in time")
        except (ConnectionError, h11.LocalProtocolError):
            return

    async def _exchange(self) -> bool:
        """One request and its answer; whether another may follow."""
        self._place.fall_silent()
        first = await self._first_bytes()
        if not first:
            return False
        async with asyncio.timeout(self._request_deadline):
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            size = 0
            while not isinstance(part := await self._next_event(), h11.EndOfMessage):
                if not isinstance(part, h11.Data):
                    return False
                size += len(part.data)
                if size > MAX_BODY:
                    await self._send(failure(413, f"bodies over {MAX_BODY} bytes are refused"), close=True)
                    return False
        try:
            request = Request.parse(
                event.method.decode("ascii"), event.target.decode("ascii"), trusted=self._trusted
            )
        except InvalidInput as error:
            await self._send(failure(400, str(error)))
        else:
            await self._send(await self._handler(request), head=request.method == "HEAD")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _first_bytes(self) -> bool:
        """Waits, longer than for a request under way, until the peer begins to say something."""
        if self._http.trailing_data[0]:
            return True
        try:
            async with asyncio.timeout(self._idle_deadline):
                data = await self._reader.read(READ)
        except TimeoutError:
            return False
        self._http.receive_data(data)
        return bool(data)

    async def _next_event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._http.receive_data(await self._reader.read(READ))

    async def _send(self, response: Response, *, head: bool = False, close: bool = False) -> None:
        headers = [("content-type", response.content_type)]
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(response.body))))
        if close:
            headers.append(("connection", "close"))
        pieces: Iterable[bytes] = (response.body,) if isinstance(response.body, bytes) else response.body
        if head:
            pieces = ()
        pending = [
            self._http.send(
                h11.Response(
                    status_code=response.status, headers=headers, reason=HTTPStatus(response.status).phrase
                )
            )
        ]
        waiting = 0
        for piece in pieces:
            pending.append(self._http.send(h11.Data(data=piece)))
            waiting += len(piece)
            if waiting >= PIECE:
                await self._write(b"".join(filter(None, pending)))
                pending.clear()
                waiting = 0
                await asyncio.sleep(0)
        pending.append(self._http.send(h11.EndOfMessage()))
        await self._write(b"".join(filter(None, pending)))

    async def _write(self, data: bytes | None) -> None:
        if not data:
            return
        self._writer.write(data)
        self._place.fall_silent()
        try:
            async with asyncio.timeout(WRITE_DEADLINE):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionAbortedError("the peer does not read") from None

    async def _refuse(self, status: int, message: str) -> None:
        """Says why the connection ends, if the peer can still be told."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            try:
                await self._send(failure(status, message), close=True)
            except (ConnectionError, h11.LocalProtocolError):
                return
