"""gRPC calls to a unix socket: many at once on one HTTP/2 connection, each with its deadline.

`connection` keeps the streams; this file moves the bytes of a unix socket, and gives calls and answers the
form of gRPC. A call that finds no connection opens one; after a failed attempt calls fail at once until the
back-off (0.1 s to 3 s) has passed. A request that the server has not begun with is sent once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from engine._fast.http2.client import ClientConnection, encode
from engine.api.duration import RetryDelays
from engine.api.grpc_codes import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
)
from engine.transport.connection import PIECE, Arrivals, Fields, MultiplexedConnection, Stream

RETRIES = RetryDelays(0.1, 3.0, factor=1.6)
MOST_UNSENT = 64 * 1024 * 1024
ANSWER_WITHIN = 4.0  # seconds that what a server asks beside its answer may wait for the next call
_PREFIX = 5
_NOT_ONE = "the response is not exactly one message"
_OF_RESET = {7: UNAVAILABLE, 8: CANCELLED, 11: RESOURCE_EXHAUSTED, 12: PERMISSION_DENIED}
_OF_HTTP = {
    400: INTERNAL,
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: UNIMPLEMENTED,
    **dict.fromkeys((429, 502, 503, 504), UNAVAILABLE),
}


class CallFailed(Exception):
    """Raised for a gRPC status other than 0, with its message; `unsent` means that the call never left this
    side.
    """

    def __init__(self, status: int, details: str, *, unsent: bool = False) -> None:
        super().__init__(details)
        self.status = status
        self.details = details
        self.unsent = unsent


class Channel:
    """Call the server at the unix socket `path`, on one asyncio loop. `limit` is the largest message in
    bytes.
    """

    def __init__(self, path: str, *, limit: int) -> None:
        self.path = path
        self.limit = limit
        self._connection: _UnixConnection | None = None
        self._retiring: set[_UnixConnection] = set()
        self._failures = 0
        self._retry_at = 0.0
        self._why = ""
        self._closed = False
        self._deadlines = _Deadlines()

    async def connected(self) -> None:
        """Return once the server has greeted; retry until it does. Raise CallFailed if the channel is
        closed.
        """
        loop = asyncio.get_running_loop()
        while not self._closed:
            with contextlib.suppress(CallFailed):
                # Shielded, because the future belongs to the connection, and one cancelled caller must not
                # take it from the others.
                if await asyncio.shield(self._open().greeted):
                    return
            await asyncio.sleep(max(0, self._retry_at - loop.time()))
        raise CallFailed(UNAVAILABLE, "the channel is closed", unsent=True)

    async def lost(self) -> None:
        """Return once the present connection has ended; immediately if there is none."""
        if (connection := self._connection) is not None:
            await connection.ended.wait()

    async def unary(self, method: str, message: bytes, timeout: float, more: Fields | None = None) -> bytes:
        """Send one message, with the headers `more`, and return the answer. Raise CallFailed; reset the call
        if cancelled.
        """
        loop = asyncio.get_running_loop()
        call = _Call(self.limit, loop.create_future(), self._again)
        self._deadlines.put(call, loop, timeout)
        try:
            self._begin(call, _head(method, timeout) + (encode(more) if more else b""), message)
            return await call.done
        finally:
            self._deadlines.drop(call)
            call.detach()
            call.retrieve_failure()

    async def messages(self, method: str, message: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the messages that a server streams, until it ends the call. Raise CallFailed."""
        call = _Streaming(self.limit, asyncio.get_running_loop().create_future(), self._again)
        try:
            self._begin(call, _head(method, None), message)
            while (next_one := await call.next()) is not None:
                yield next_one
                await asyncio.sleep(0)  # messages that wait already are one turn of the loop each
        finally:
            call.detach()

    def close(self) -> None:
        """Close the connection. Calls in progress fail."""
        self._closed = True
        self._deadlines.stop()
        for connection in [self._connection, *self._retiring]:
            if connection is not None:
                connection.lose("the channel was closed")

    def _begin(self, call: _Call, head: bytes, message: bytes) -> None:
        if len(message) > self.limit:
            raise CallFailed(RESOURCE_EXHAUSTED, f"a message of {len(message)} bytes, more than {self.limit}")
        call.head, call.body = head, b"\0" + len(message).to_bytes(4, "big") + message
        self._open().begin(call)

    def _open(self) -> _UnixConnection:
        if self._connection is not None and self._connection.usable:
            return self._connection
        loop = asyncio.get_running_loop()
        if self._closed:
            raise CallFailed(UNAVAILABLE, "the channel is closed", unsent=True)
        if loop.time() < self._retry_at:
            raise CallFailed(UNAVAILABLE, self._why, unsent=True)
        try:
            connected = _connected(self.path)
        except OSError as error:
            self._failed(f"connect: {error.strerror}")
            raise CallFailed(UNAVAILABLE, self._why, unsent=True) from None
        if self._connection is not None:
            # Its calls go on until they end; only new calls use the new connection.
            self._retiring.add(self._connection)
        self._connection = _UnixConnection(connected, loop, self._lost)
        return self._connection

    def _failed(self, why: str) -> None:
        self._why = why
        self._failures += 1
        self._retry_at = asyncio.get_running_loop().time() + RETRIES.after(self._failures)

    def _lost(self, connection: _UnixConnection, why: str) -> None:
        self._retiring.discard(connection)
        if connection is not self._connection:
            return
        self._connection = None
        # A server that accepts connections and never sends valid HTTP/2 counts as a failed attempt; otherwise
        # every call would connect again at once.
        if connection.settled:
            self._failures = 0
        elif not self._closed:
            self._failed(why)

    def _again(self, call: _Call) -> None:
        """Send a call again that the server has not begun."""
        try:
            self._open().begin(call)
        except CallFailed as error:
            call.abort(error)


class _Deadlines:
    """Fail calls that are not answered in time, with one timer for all: most are answered long before."""

    def __init__(self) -> None:
        self._due: dict[_Call, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Not later than the first call is due."""

    def put(self, call: _Call, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        due = self._due[call] = loop.time() + timeout
        # A timer that is too early only checks once more. Moving it for every call would cost more.
        if self._timer is None or due < self._timer.when():
            self._schedule(due, loop)

    def drop(self, call: _Call) -> None:
        self._due.pop(call, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self.stop()
        self._timer = loop.call_at(when, self._fail_overdue, when, loop)

    def _fail_overdue(self, now: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for call in [call for call, due in self._due.items() if due <= now]:
            del self._due[call]
            call.abort(CallFailed(DEADLINE_EXCEEDED, "Deadline Exceeded"))
        if self._due:
            self._schedule(min(self._due.values()), loop)


class _UnixConnection(MultiplexedConnection):
    """Read and write the socket of one connection."""

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[_UnixConnection, str], None],
    ) -> None:
        super().__init__(ClientConnection(), loop)
        self._socket = connected
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._buffer = bytearray(PIECE)
        self._view = memoryview(self._buffer)
        self.ended = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        loop.add_reader(connected, self._readable)

    @property
    def settled(self) -> bool:
        return self._core.settled

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            # asyncio's own transports would queue without bound here.
            if len(self._unsent) > MOST_UNSENT:
                self.lose("the server does not read")
        elif (sent := self._send(data)) < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._socket, self._writable)

    def _shut(self, why: str) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self.ended.set()
        if self._later is not None:
            self._later.cancel()
        self._on_lost(self, why)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except OSError as error:
            # Any other error ends the connection when the socket is read, which knows the reason, and first
            # delivers what the server sent before it closed.
            return 0 if isinstance(error, BlockingIOError | InterruptedError) else len(data)

    def _writable(self) -> None:
        del self._unsent[: self._send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
            self.flush()

    def _flush_later(self) -> None:
        if self._later is None and not self.closed:
            self._later = self._loop.call_later(ANSWER_WITHIN, self._flush_now)

    def _flush_now(self) -> None:
        self._later = None
        self.flush()

    def _readable(self) -> None:
        before = len(self._streams)
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.lose(f"the connection is lost: {error.strerror}")
            return
        if size == 0:
            self.lose("the server closed the connection")
            return
        self.receive(self._view[:size])
        if len(self._streams) < before:
            # A call has ended. Window updates and acknowledgements go with the next call's request, which
            # saves a system call; without a next one they go after `ANSWER_WITHIN`.
            self._flush_later()
        else:
            self.flush()


class _Call(Stream):
    """Carry one call with one answer, which `done` gets. `begin_again` sends it on another connection."""

    __slots__ = ("_answer", "_begin_again", "_details", "_http_status", "_limit", "_status", "done")

    def __init__(self, limit: int, done: asyncio.Future[bytes], begin_again: Callable[[_Call], None]) -> None:
        super().__init__()
        self.done = done
        self._begin_again = begin_again
        self._limit = limit
        self._http_status = b""
        self._status: bytes | None = None
        self._details = b""
        self._answer = bytearray()

    def detach(self) -> None:
        if self.connection is not None:
            self.connection.release(self)
            self.connection = None

    def retrieve_failure(self) -> None:
        """Take note of the failure of a call that was cancelled at that moment, or asyncio would log it."""
        if self.done.done() and not self.done.cancelled():
            self.done.exception()

    def fields(self, fields: Fields) -> None:
        for name, value in fields:
            if name == b"grpc-status":
                self._status = value
            elif name == b"grpc-message":
                self._details = value
            elif name == b":status":
                self._http_status = value

    def data(self, data: bytes) -> None:
        self._release_window(len(data))
        self._answer += data
        if 0 < self.checked_size() < len(self._answer):
            self.abort(CallFailed(INTERNAL, _NOT_ONE))

    def checked_size(self) -> int:
        """Return the size of the current message with its prefix, or 0 if it is not known yet."""
        if len(self._answer) < _PREFIX:
            return 0
        size = int.from_bytes(self._answer[1:_PREFIX], "big")
        if not self._answer[0] and size <= self._limit:
            return _PREFIX + size
        # The first byte of the prefix says whether the message is compressed, four bytes give its size.
        if self._answer[0]:
            text = "the response is compressed although no compression was offered"
            self.abort(CallFailed(INTERNAL, text))
        else:
            text = f"an answer of {size} bytes, more than {self._limit}"
            self.abort(CallFailed(RESOURCE_EXHAUSTED, text))
        return 0

    def end(self) -> None:
        self.connection = None
        if (failure := self._failure()) is not None:
            self.abort(failure)
        elif not self._answer or len(self._answer) != self.checked_size():
            self.abort(CallFailed(INTERNAL, _NOT_ONE))
        elif not self.done.done():
            self.done.set_result(bytes(memoryview(self._answer)[_PREFIX:]))

    def fail(self, why: str, code: int | None = None) -> None:
        self.abort(CallFailed(UNAVAILABLE if code is None else _OF_RESET.get(code, INTERNAL), why))

    def not_begun(self, why: str) -> None:
        self._begin_again(self)

    def abort(self, error: CallFailed) -> None:
        """Fail the call, and let the server know if it does not yet."""
        self.detach()
        if not self.done.done():
            self.done.set_exception(error)

    def _failure(self) -> CallFailed | None:
        """Return why the call has failed, now that the server has ended it."""
        if self._status == b"0":
            return None
        if self._status is not None:
            details = unquote_to_bytes(self._details).decode(errors="replace")
            return CallFailed(_number(self._status, UNKNOWN), details)
        # No gRPC server answered: a proxy, or an HTTP server on the socket. The mapping is gRPC's
        # (http-grpc-status-mapping.md).
        if self._http_status != b"200":
            code = _OF_HTTP.get(_number(self._http_status, 0), UNKNOWN)
            http = self._http_status.decode("latin-1") or "missing"
            return CallFailed(code, f"unexpected HTTP status code {http}")
        return CallFailed(INTERNAL, "the server ended the call without a status")

    def _release_window(self, size: int) -> None:
        if self.connection is not None:
            self.connection.take(self, size)


class _Streaming(_Call):
    """Carry one call with many answers. While any of them wait to be read, the server's window does not
    grow.
    """

    __slots__ = ("_held", "_messages")

    def __init__(self, limit: int, done: asyncio.Future[bytes], begin_again: Callable[[_Call], None]) -> None:
        super().__init__(limit, done, begin_again)
        self._messages: Arrivals[bytes] = Arrivals()
        self._held = 0

    async def next(self) -> bytes | None:
        """Return the next message; None at the end of the call."""
        while not self._messages.items:
            if self._messages.is_over():
                return None
            # Everything has been read: only now may the server send more. A slow reader thus limits the
            # server, and not the memory of this process.
            if self._held and self.connection is not None:
                self._release_window(self._held)
                self._held = 0
                self.connection.flush()
            await self._messages.wait()
        return self._messages.items.popleft()

    def data(self, data: bytes) -> None:
        self._held += len(data)
        self._answer += data
        # One frame may contain many messages, and a message may span many frames.
        while 0 < (size := self.checked_size()) <= len(self._answer):
            self._messages.items.append(bytes(memoryview(self._answer)[_PREFIX:size]))
            del self._answer[:size]
        if not self._messages.items:
            self._release_window(self._held)
            self._held = 0
        self._messages.wake()

    def end(self) -> None:
        self.connection = None
        error = self._failure()
        if error is None and self._answer:
            error = CallFailed(INTERNAL, "the last message is incomplete")
        self._messages.end(error)

    def abort(self, error: CallFailed) -> None:
        self.detach()
        self._messages.end(error)


def _number(status: bytes, otherwise: int) -> int:
    """Parse a number of three digits at most."""
    return int(status) if status.isdigit() and len(status) < 4 else otherwise


def _connected(path: str) -> socket.socket:
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # A connect to a unix socket completes at once or fails (EAGAIN if the server's backlog is full); it
        # never stays in progress as TCP does.
        connecting.connect(path)
    except OSError:
        connecting.close()
        raise
    return connecting


@lru_cache(maxsize=512)
def _head(method: str, timeout: float | None) -> bytes:
    """Return the header block of a call; `timeout` in seconds is sent to the server."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"kubengine"),
    ]
    if timeout is not None:
        milliseconds = max(1, int(timeout * 1000))
        # gRPC allows at most eight digits in a timeout.
        told = f"{milliseconds}m" if milliseconds < 10**8 else f"{min(int(timeout), 10**8 - 1)}S"
        fields.insert(4, (b"grpc-timeout", told.encode()))
    return encode(fields)
