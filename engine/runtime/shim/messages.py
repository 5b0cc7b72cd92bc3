"""What processes of this package say to each other: length-prefixed JSON objects, some followed by bytes.

Whoever shares a process namespace with one of them might answer in its place, so a message is data and
nothing else: it has a limit, must be an object, and its fields are checked by who reads them.
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
    """Bytes of the object and of what follows it. Raises ValueError for more than `most` together."""
    body, content = HEAD.unpack(head)
    if body + content > most:
        raise ValueError(f"a message of {body + content} bytes")
    return body, content


def unpack(body: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no object."""
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("a message that is too deep") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message


def receive(connection: socket.socket, most: int = MOST) -> dict[str, Any] | None:
    """The next message without bytes, None at the end. Raises ValueError and OSError."""
    head = _exactly(connection, HEAD.size)
    body = _exactly(connection, sum(sizes(head, most))) if head else b""
    return unpack(body) if body else None


def receive_from_child(connection: socket.socket) -> dict[str, Any]:
    """What a child says before its exec: `user` (uid, gid, groups) or `error` alone; empty after the exec."""
    try:
        message = receive(connection, CHILD_MOST)
    except TimeoutError:
        return {"error": "its process could not be prepared in time"}
    except (ValueError, OSError):
        return {"error": "its process could not say what it is"}
    if message is None:
        return {}
    if isinstance(message.get("error"), str):
        return {"error": message["error"][:4096]}
    match message.get("user"):
        case [int(uid), int(gid), [*groups]] if all(isinstance(group, int) for group in groups):
            return {"user": [uid, gid, groups]}
    return {"error": "its process could not say what it is"}


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Empty where the other end hung up before."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            return b""
        data += part
    return bytes(data)
