"""The end of a connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.server.http.write_timeout import part
from engine.testing.apiserver import Authority
from tests.waiting import eventually

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def parted_from(directory: Path, before: Serve) -> bytes:
    """What a client reads of a secure server that does `before`, then parts. Raises what parting raises."""
    authority = Authority(directory)
    pair = authority.issue("n1", alternatives="IP:127.0.0.1")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(pair.certificate, pair.key)
    parted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await before(reader, writer)
            await part(writer, 5.0)
        except Exception as error:
            parted.set_exception(error)
        else:
            parted.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=own)
    async with server:
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(authority.certificate))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        read = await reader.read()
        writer.close()
        await writer.wait_closed()
        await parted
    return read


async def test_a_secure_connection_that_is_closing_already_is_parted_from(tmp_path: Path) -> None:
    async def closing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        writer.close()

    assert await parted_from(tmp_path, closing) == b"all of it"


async def test_a_secure_connection_that_is_over_already_is_parted_from(tmp_path: Path) -> None:
    async def over(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        await writer.drain()
        writer.close()
        await eventually(lambda: writer.get_extra_info("socket") is None)

    assert await parted_from(tmp_path, over) == b"all of it"
