"""How a connection is closed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.host.connection_limiter import ConnectionLimiter
from engine.host.loop_share import LoopShare
from engine.server.http.connection import Connection
from engine.server.http.exchange import Answer, Request, plain
from engine.server.http.write_timeout import close_when_read
from engine.testing.apiserver import Authority
from tests.waiting import eventually

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_until_closed(directory: Path, before: Serve) -> bytes:
    """Return what a client reads from a TLS server that runs `before` and then closes. Raise what closing
    raises.
    """
    authority = Authority(directory)
    pair = authority.issue("n1", alternatives="IP:127.0.0.1")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(pair.certificate, pair.key)
    closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await before(reader, writer)
            await close_when_read(writer, 5.0)
        except Exception as error:
            closed.set_exception(error)
        else:
            closed.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=own)
    async with server:
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(authority.certificate))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        read = await reader.read()
        writer.close()
        await writer.wait_closed()
        await closed
    return read


async def test_a_closing_tls_connection_sends_everything(tmp_path: Path) -> None:
    async def closing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        writer.close()

    assert await read_until_closed(tmp_path, closing) == b"all of it"


async def test_a_tls_connection_may_have_closed_already(tmp_path: Path) -> None:
    async def closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        await writer.drain()
        writer.close()
        await eventually(lambda: writer.get_extra_info("socket") is None)

    assert await read_until_closed(tmp_path, closed) == b"all of it"


async def test_nothing_is_written_to_a_connection_that_is_closing() -> None:
    """Its peer is gone, so requests that wait in the buffer are not answered either."""
    here, peer = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=here)
    request = b"GET / HTTP/1.1\r\nHost: n\r\n\r\n"
    requests = asyncio.StreamReader()
    requests.feed_data(100 * request)
    requests.feed_eof()
    answered: list[Request] = []
    written: list[bytes] = []

    async def answer(asked: Request) -> Answer:
        answered.append(asked)
        if len(answered) == 3:
            writer.transport.abort()
            writer.write = written.append  # type: ignore[assignment, method-assign]
        return plain(200, "ok")

    slot = ConnectionLimiter(1).enter(writer.transport.abort)
    assert slot is not None
    connection = Connection(requests, writer, handler=answer, trusted=True, slot=slot, share=LoopShare(1))
    await connection.serve()
    peer.close()
    assert len(answered) == 3
    assert written == []
