"""Serve the report of a running shadow over HTTP, to GET requests only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from engine.api.errors import Refused
from engine.api.quantity import decimal

Document = tuple[str, bytes]
"""A content type and a body."""
_DEADLINE = 10.0
_MAX_HEADER_LINES = 100


class PageServer:
    """Serve documents by path, each made for each request. `address` is `HOST:PORT`.

    Raise `Refused` for another address.
    """

    def __init__(self, address: str, documents: Mapping[str, Callable[[], Document]]) -> None:
        host, _, port = address.rpartition(":")
        number = decimal(port)
        if not host or number is None:
            raise Refused("expected HOST:PORT, such as 127.0.0.1:10256", subject=address)
        self._host, self._port = host.strip("[]"), number
        self._documents = documents
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Open the port. Raise `Refused` if it is taken."""
        try:
            self._server = await asyncio.start_server(self._answer, self._host, self._port)
        except OSError as error:
            text = f"cannot listen: {error.strerror}"
            raise Refused(text, subject=f"{self._host}:{self._port}") from None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection; ignore a client that is slow or sends no HTTP."""
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_DEADLINE):
                method, path, *_ = (await reader.readline()).decode("latin-1").split()
                for _ in range(_MAX_HEADER_LINES):
                    if not (await reader.readline()).strip():
                        break
                writer.write(self._response(method, path.partition("?")[0]))
                await writer.drain()
        writer.close()

    def _response(self, method: str, path: str) -> bytes:
        document = self._documents.get(path)
        if method != "GET" or document is None:
            status = "405 Method Not Allowed" if method != "GET" else "404 Not Found"
            return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        kind, body = document()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body
