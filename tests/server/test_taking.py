"""The end of a connection."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from engine.server.taking import part
from engine.testing.apiserver import Authority


async def test_a_secure_connection_that_is_closing_already_is_parted_from(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("n1", alternatives="IP:127.0.0.1")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(pair.certificate, pair.key)
    parted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        writer.close()
        try:
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
        assert await reader.read() == b"all of it"
        writer.close()
        await writer.wait_closed()
        await parted
