"""Exchange messages between processes of this package: length-prefixed JSON objects, some followed by bytes.

A process in the same process namespace might answer in place of the real one, so messages are untrusted:
each has a size limit, must be an object, and its reader validates the fields.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEAD = struct.Struct("<II")
MOST = 32 << 20
CHILD_MOST = 1 << 20


def pack(message: dict[str, Any], content: bytes = b"") -> bytes:
    body = json.dumps(message).encode()
    return HEAD.pack(len(body), len(content)) + body + content


def sizes(head: bytes, most: int = MOST) -> tuple[int, int]:
    """Return the bytes of the object and of what follows it. Raise ValueError if both together
    exceed `most`.
    """
    body, content = HEAD.unpack(head)
    if body + content > most:
        raise ValueError(f"a message of {body + content} bytes")
    return body, content


def unpack(body: bytes) -> dict[str, Any]:
    """Decode an object. Raise ValueError for anything else."""
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("a message that is too deep") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message


def receive(connection: socket.socket, most: int = MOST) -> dict[str, Any] | None:
    """Return the next message without bytes, None at the end. Raise ValueError and OSError."""
    head = _exactly(connection, HEAD.size)
    body = _exactly(connection, sum(sizes(head, most))) if head else b""
    return unpack(body) if body else None


def receive_from_child(connection: socket.socket) -> dict[str, Any]:
    """Return a child's message before its exec: `user` (uid, gid, groups) or only `error`; empty after the
    exec.
    """
    try:
        message = receive(connection, CHILD_MOST)
    except TimeoutError:
        return {"error": "its process could not be prepared in time"}
    except (ValueError, OSError):
        return {"error": "its process could not be identified"}
    if message is None:
        return {}
    if isinstance(message.get("error"), str):
        return {"error": message["error"][:4096]}
    match message.get("user"):
        case [int(uid), int(gid), [*groups]] if all(isinstance(group, int) for group in groups):
            return {"user": [uid, gid, groups]}
    return {"error": "its process could not be identified"}


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Read exactly this many bytes; return nothing if the peer closed the connection first."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            return b""
        data += part
    return bytes(data)
