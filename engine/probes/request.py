"""Builds what probes send, in parts that many probes share. Pure.

The native loop stores each part once, and inserts per connection what belongs to a pod: its address and its
container's id (`request.h`).
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence
from urllib.parse import quote, unquote_to_bytes

from engine.api.errors import InvalidInput
from engine.wire.cri_v1_pb2 import ExecSyncRequest
from engine.wire.grpc_health_v1_pb2 import HealthCheckRequest

USER_AGENT = "kube-probe/1.36"
MAX_COMMAND = 60_000
"""Bytes of a command; what a server takes before it has said how much it would."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_PUSH = b"\x00\x02\x00\x00\x00\x00"
_WIDE_WINDOW = b"\x00\x04\x7f\xff\xff\xff"
MAX_AUTHORITY = 126
"""Bytes, so that one of them says how many there are."""
MAX_FIELDS = 16_000
"""Bytes of a GET over HTTP/2, in one frame of the size that any server takes."""
_END_STREAM, _END_HEADERS = 1, 4
_BLOCK_AT = 39
"""Where the HEADERS frame begins, after preface and SETTINGS."""
_OF_HTTP_1 = frozenset(
    ("connection", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade")
)
_NOT_IN_NAMES, _NOT_IN_VALUES = frozenset(" \r\n:\0"), frozenset("\r\n\0")
_VISIBLE = frozenset(map(chr, range(0x21, 0x7F)))
_NOT_AS_GIVEN = frozenset(("host", "user-agent", "content-length", "transfer-encoding", "trailer"))
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_IN_PATH = "$&+,/:;=@~"
_VALID_PATH = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/\[\]%]*")


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_request(
    host: str, port: int, path: str, headers: Sequence[tuple[str, str]] = ()
) -> tuple[bytes, bytes, bytes]:
    """Return the kubelet's GET as path, Host header and remaining header lines (with the closing blank line).

    A header of the user replaces the default of its name, and the first `Host` replaces the authority, which
    is empty where it is the authority; an empty `Accept` or `User-Agent` leaves that header out. A probe has
    no body, so headers about one are left out. Raises `InvalidInput` where a name or a value could not stand
    in a request.
    """
    own = authority(host, port)
    lines: list[tuple[str, str]] = []
    first: dict[str, str] = {}
    for name, value in headers:
        first.setdefault(name.lower(), value)
    for name, default in (("User-Agent", USER_AGENT), ("Accept", "*/*")):
        if name.lower() not in first:
            lines.append((name, default))
    name_host = first.get("host") or own
    if agent := first.get("user-agent"):
        lines.append(("User-Agent", agent))
    for name, value in headers:
        if name.lower() not in _NOT_AS_GIVEN and (name.lower() != "accept" or first["accept"]):
            lines.append((name, value))
    if first.get("connection") != "close":
        lines.append(("Connection", "close"))
    for name, value in [*lines, ("Host", name_host)]:
        if not (name and _NOT_IN_NAMES.isdisjoint(name) and _NOT_IN_VALUES.isdisjoint(value)):
            raise InvalidInput("not a valid HTTP header", subject=f"httpHeaders {name!r}")
    rest = "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
    return _target(path).encode(), b"" if name_host == own else name_host.encode(), rest.encode()


def _target(path: str) -> str:
    """Return the path and query of a request, escaped as Go's net/url does.

    A path without bytes that have to be escaped stays as it is. A wrong escape makes the whole text a path.
    """
    if not path.startswith("/"):
        path = f"/{path}"
    address, _, fragment = path.partition("#")
    plain, mark, query = address.partition("?")
    if _BAD_ESCAPE.search(plain) or _BAD_ESCAPE.search(fragment):
        return quote(path, safe=_IN_PATH)
    if not _VALID_PATH.fullmatch(plain):
        plain = quote(unquote_to_bytes(plain), safe=_IN_PATH)
    if not _VISIBLE.issuperset(query):
        query = "".join(c if c in _VISIBLE else quote(c, safe="") for c in query)
    return plain + mark + query


def url_host(host: str) -> bytes:
    """Return an address in the spelling of the user's URL; empty if that is the usual one."""
    if ":" not in host:  # IPv4 has one spelling
        return b""
    return b"" if host == str(ipaddress.ip_address(host)) and "%" not in host else host.encode()


def grpc_request(service: str, scheme: str = "http") -> tuple[bytes, bytes]:
    """Return an HTTP/2 connection with one Check call in two parts: before and after the text of its
    :authority.

    Its length (one byte, the last of the first part) and its share of the HEADERS frame's are zero.
    """
    before = (":method", "POST"), (":scheme", scheme), (":path", "/grpc.health.v1.Health/Check")
    after = ("content-type", "application/grpc"), ("user-agent", USER_AGENT), ("te", "trailers")
    message = HealthCheckRequest(service=service).SerializeToString()
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    head, rest = _around_authority(before, after, _END_HEADERS)
    return head, rest + _frame(0, _END_STREAM, 1, body)


def h2c_request(
    host: str, port: int, path: str, headers: Sequence[tuple[str, str]] = ()
) -> tuple[bytes, bytes, bytes]:
    """Return the GET of `http_request` as an HTTP/2 connection in three parts: before its :authority, the
    :authority if it is not the address, and after it. Headers that only HTTP/1 has are left out. Raises
    `InvalidInput` too where a name or all of it is longer than any server takes.
    """
    target, name, rest = http_request(host, port, path, headers)
    lines = [line.partition(": ") for line in rest.decode().split("\r\n") if line]
    fields = [(key.lower(), value) for key, _, value in lines if key.lower() not in _OF_HTTP_1]
    before = (":method", "GET"), (":scheme", "http"), (":path", target.decode())
    head, tail = _around_authority(before, fields, _END_HEADERS | _END_STREAM)
    if len(name) > MAX_AUTHORITY:
        raise InvalidInput(f"longer than {MAX_AUTHORITY} bytes", subject="httpHeaders 'Host'")
    if len(head) + len(tail) > MAX_FIELDS:
        raise InvalidInput(f"longer than {MAX_FIELDS} bytes", subject="httpHeaders")
    return head, name, tail


def with_authority(head: bytes, name: bytes, tail: bytes) -> bytes:
    """Join the parts as the native loop sends them."""
    block = int.from_bytes(head[_BLOCK_AT : _BLOCK_AT + 3], "big") + len(name)
    framed = head[:_BLOCK_AT] + block.to_bytes(3, "big") + head[_BLOCK_AT + 3 : -1]
    return framed + bytes((len(name),)) + name + tail


def exec_request(command: Sequence[str], timeout: float) -> tuple[bytes, bytes]:
    """Return an HTTP/2 connection with one ExecSync call in two parts: before the container's id, and after
    it. The runtime counts whole seconds, and gets some more to report the time-out.

    The windows have their maximum, so that no output waits for a window update. Raises `InvalidInput`.
    """
    seconds = math.ceil(timeout)
    message = ExecSyncRequest(cmd=command, timeout=seconds).SerializeToString()
    if len(message) > MAX_COMMAND:
        raise InvalidInput(f"longer than {MAX_COMMAND} bytes", subject="exec command")
    headers = _block(
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/runtime.v1.RuntimeService/ExecSync"),
        (":authority", "localhost"),
        ("grpc-timeout", f"{seconds + 5}S"),
        ("content-type", "application/grpc"),
        ("user-agent", USER_AGENT),
        ("te", "trailers"),
    )
    settings = _frame(4, 0, 0, _NO_PUSH + _WIDE_WINDOW)
    window = _frame(8, 0, 0, (0x7FFFFFFF - 65535).to_bytes(4, "big"))
    return _PREFACE + settings + window + _frame(1, 4, 1, headers), message


def _around_authority(
    before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]], flags: int
) -> tuple[bytes, bytes]:
    """Return the beginning of a connection up to the :authority's text, and the rest of the header block."""
    first = _block(*before) + b"\x00" + _string(":authority") + b"\x00"
    rest = _block(*after)
    head = _frame(1, flags, 1, first + rest)[: 9 + len(first)]
    return _PREFACE + _frame(4, 0, 0, _NO_PUSH) + head, rest


def _block(*fields: tuple[str, str]) -> bytes:
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _frame(type: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((type, flags)) + stream.to_bytes(4, "big") + payload


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest = len(raw) - 127
    return bytes((127, rest & 0x7F | 0x80, rest >> 7)) + raw if rest > 0x7F else bytes((127, rest)) + raw
