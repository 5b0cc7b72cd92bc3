"""Reads the documents of one running node: over HTTP, or from the socket of Kubengine."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from engine.api.errors import Unavailable
from engine.host.http.bodies import read_body
from engine.host.http.connections import DeadlineUnixConnection

LIVE_PATHS = (
    "/pods",
    "/kubengine/node",
    "/stats/summary",
    "/configz",
    "/kubengine/cpus",
    "/kubengine/memory",
    "/kubengine/devices",
)
"""Only the first is required: a kubelet has no pages for its Node object, CPUs, memory and devices, and no
read-only port shows the configuration.
"""
TIMEOUT = 30.0
MAX_BYTES = 256 * 1024 * 1024
_NOT_SERVED = (401, 403, 404)


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
    from urllib.request import build_opener

    from engine.host.http.handlers import deadline_handlers

    if _is_socket(base):
        connection = DeadlineUnixConnection(base, TIMEOUT)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.reason, read_body(answer, MAX_BYTES)
        finally:
            connection.close()
    try:
        with build_opener(*deadline_handlers()).open(base + path, timeout=TIMEOUT) as answer:
            return answer.status, answer.reason, read_body(answer, MAX_BYTES)
    except HTTPError as error:
        with error:
            return error.code, error.reason, b""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False
