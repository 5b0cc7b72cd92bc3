"""Reads the documents of one running node: over HTTP, or from the socket of Kubengine."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from engine.api.errors import Unavailable

LIVE_PATHS = (
    "/pods",
    "/kubengine/node",
    "/stats/summary",
    "/configz",
    "/kubengine/cpus",
    "/kubengine/memory",
)
"""Only the first is required: a kubelet has no pages for its Node object, CPUs and memory, and no read-only
port shows the configuration.
"""
TIMEOUT = 30.0
MAX_BYTES = 256 * 1024 * 1024
_NOT_SERVED = (401, 403, 404)


class _SocketConnection(HTTPConnection):
    """Connect to an HTTP server on a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def is_live(source: str) -> bool:
    """Tell whether a source is a running node: a URL, or a unix socket."""
    return source.startswith(("http://", "https://")) or _is_socket(source)


def live_documents(source: str) -> Iterator[tuple[str, bytes]]:
    """Yield the address and the body of each document that the node serves. Raise `Unavailable` naming the
    address.
    """
    base = source.rstrip("/")
    for path in LIVE_PATHS:
        address = f"{base}:{path}" if _is_socket(source) else base + path
        try:
            status, reason, data = _get(base, path)
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            raise Unavailable(f"cannot be reached: {cause}", subject=address) from None
        if status in _NOT_SERVED and path != LIVE_PATHS[0]:
            continue
        if status != 200:
            raise Unavailable(f"answered {status} {reason}", subject=address)
        if len(data) > MAX_BYTES:
            raise Unavailable(f"answered more than {MAX_BYTES} bytes", subject=address)
        yield address, data


def _get(base: str, path: str) -> tuple[int, str, bytes]:
    """Return the status, its reason, and the body."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    if _is_socket(base):
        connection = _SocketConnection(base)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.read(MAX_BYTES + 1)
        finally:
            connection.close()
    try:
        with urlopen(base + path, timeout=TIMEOUT) as answer:  # noqa: S310
            return answer.status, answer.reason, answer.read(MAX_BYTES + 1)
    except HTTPError as error:
        with error:
            return error.code, error.reason, b""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False
