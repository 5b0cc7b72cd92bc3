"""Connections of `http.client` on which a whole answer has one deadline.

A socket's time-out covers one read only, and so a server that sends a byte now and then, of the head or of
the body, could keep its reader for ever. Here `timeout` is the time from a request to the end of its answer.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPSConnection
from typing import TYPE_CHECKING, Any


class _Reader(io.RawIOBase):
    """Read a socket until `end`, on the steady clock."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._socket, self._end = sock, end
        # The socket stays open until this is closed, as `http.client` expects of what `makefile` returns.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Socket:
    """Be a socket whose files are read until `end()`."""

    def __init__(self, sock: socket.socket, end: Callable[[], float]) -> None:
        self._socket, self._end = sock, end

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._socket, self._end()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


if TYPE_CHECKING:
    _Base = HTTPConnection
else:
    _Base = object


class _WithDeadline(_Base):
    """Give each request of a connection `timeout` seconds for its whole answer."""

    _end = 0.0

    def putrequest(self, *arguments: Any, **options: Any) -> None:
        self._end = time.monotonic() + (self.timeout or 0)
        super().putrequest(*arguments, **options)

    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock, lambda: self._end)


class UnixConnection(HTTPConnection):
    """Connect to an HTTP server on a unix socket; `timeout` bounds each read and write."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DeadlineConnection(_WithDeadline, HTTPConnection):
    """Connect over TCP."""


class DeadlineTlsConnection(_WithDeadline, HTTPSConnection):
    """Connect over TLS. Its handshake has a deadline of its own, `timeout`."""


class DeadlineUnixConnection(_WithDeadline, UnixConnection):
    """Connect to a unix socket."""
