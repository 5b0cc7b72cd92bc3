"""Connect peers that never stop sending. They run in threads, so that they take no turn of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

CHUNK = 65536


class EndlessPeer:
    """Send `begin` once and then `data` without end, and read and drop the answers.

    `open` returns a connected socket, or raises TimeoutError after a moment. A connection that ends is opened
    again.
    """

    def __init__(self, open: Callable[[], socket.socket], data: bytes, *, begin: bytes = b"") -> None:
        self._open, self._begin = open, begin
        self._data = data * (CHUNK // len(data) + 1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(OSError), self._open() as connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        waiting = self._begin + self._data
        while not self._stopped.is_set():
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not connection.recv(CHUNK):
                    return
            try:
                size = connection.send(waiting)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([connection], [connection], [], 0.05)
                continue
            self.sent += size
            waiting = waiting[size:]
            if len(waiting) < CHUNK:
                waiting += self._data


def to_port(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=5)


def to_tls_port(port: int) -> Callable[[], socket.socket]:
    """Connect without a client certificate, and without checking the server's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return lambda: wrapped(to_port(port)(), context)


def wrapped(connection: socket.socket, context: ssl.SSLContext, **how: Any) -> ssl.SSLSocket:
    """Return TLS over a connection. If that fails, close the connection and raise the error."""
    try:
        return context.wrap_socket(connection, **how)
    except BaseException:
        connection.close()
        raise


def to_path(path: Path) -> Callable[[], socket.socket]:
    def open() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        return connection

    return open


def from_listener(
    listener: socket.socket, context: ssl.SSLContext | None = None
) -> Callable[[], socket.socket]:
    """Return a function that accepts the next connection of `listener`."""
    listener.settimeout(0.1)

    def open() -> socket.socket:
        connection, _ = listener.accept()
        connection.settimeout(5)
        return connection if context is None else wrapped(connection, context, server_side=True)

    return open


def listening_at(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener
