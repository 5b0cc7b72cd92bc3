"""Serve TLS that fails at each point of a connection, and count the sessions that clients keep."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Self

from engine.testing.apiserver import Authority

GARBAGE = b"HTTP/1.1 400 Bad Request\r\n\r\n"
NO_SETTINGS = b"\0\0\0\7\0\0\0\0\0"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
GOAWAY = SETTINGS + b"\0\0\x08\7\0\0\0\0\0" + bytes(8)

Talk = Callable[[socket.socket, ssl.SSLContext], None]


def closes(connection: socket.socket, _: ssl.SSLContext) -> None:
    connection.close()


def resets(connection: socket.socket, _: ssl.SSLContext) -> None:
    connection.recv(16)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def hears_the_hello(connection: socket.socket, _: ssl.SSLContext) -> None:
    connection.recv(65536)
    connection.close()


def speaks_plain(connection: socket.socket, _: ssl.SSLContext) -> None:
    connection.recv(65536)
    connection.sendall(GARBAGE)
    connection.close()


def says(data: bytes, protocols: tuple[str, ...] = ("h2",)) -> Talk:
    def talk(connection: socket.socket, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(list(protocols))
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(data)
            secured.recv(65536)

    return talk


SERVERS: dict[str, Talk] = {
    "closes": closes,
    "resets": resets,
    "hears-the-hello": hears_the_hello,
    "plain": speaks_plain,
    "no-http2": says(b"", ("http/1.1",)),
    "no-settings": says(NO_SETTINGS),
    "closes-after-handshake": says(b""),
    "goes-away": says(GOAWAY),
    "breaks-off": says(SETTINGS),
    "half-an-answer": says(SETTINGS + b"\0\0\1\1\4\0\0\0\1\x88" + b"\0\0\1\0\0\0\0\0\1x"),
    "breaks-http2": says(SETTINGS + b"\0\0\1\1\4\0\0\0\1\x88" + b"\0\0\1\6\0\0\0\0\0x"),
}


class HostileServer:
    """Serve connections one after another, in a thread, each as `SERVERS[kind]` does."""

    def __init__(self, kind: str, authority: Authority) -> None:
        pair = authority.issue("server", alternatives="IP:127.0.0.1")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._talk = SERVERS[kind]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                connection.settimeout(5)
                self._talk(connection, self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def client_sessions() -> int:
    """Return the number of TLS sessions of clients in this process that still hold OpenSSL's memory."""
    return sum(isinstance(each, ssl.SSLObject) and not each.server_side for each in gc.get_objects())
