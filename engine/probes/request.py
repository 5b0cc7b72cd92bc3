"""The bytes that a probe sends, written once per target."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.errors import InvalidInput
from engine.wire.grpc_health_v1_pb2 import HealthCheckRequest

USER_AGENT = "kube-probe/1.36"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_request(
    host: str, port: int, path: str, headers: Sequence[tuple[str, str]] = ()
) -> tuple[bytes, bytes, bytes]:
    """The kubelet's GET as path, Host header and the other header lines (with the closing blank line).

    A header of the user replaces the default of its name; `Host` replaces the authority; an empty
    `Accept` or `User-Agent` leaves that header out. Raises `InvalidInput` where a name or a value
    could not stand in a request.
    """
    if not path.startswith("/"):
        path = f"/{path}"
    path = path.partition("#")[0]
    name_host = authority(host, port)
    lines: list[tuple[str, str]] = []
    given = {name.lower() for name, _ in headers}
    for name, default in (("User-Agent", USER_AGENT), ("Accept", "*/*")):
        if name.lower() not in given:
            lines.append((name, default))
    for name, value in headers:
        if name.lower() == "host":
            name_host = value or name_host
        elif value or name.lower() not in ("accept", "user-agent"):
            lines.append((name, value))
    lines.append(("Connection", "close"))
    for name, value in [*lines, ("Host", name_host)]:
        if not name or any(c in name for c in " \r\n:\0") or any(c in value for c in "\r\n\0"):
            raise InvalidInput("not a header that HTTP can carry", subject=f"httpHeaders {name!r}")
    path = "".join(c if 0x20 < ord(c) < 0x7F else "".join(f"%{b:02X}" for b in c.encode()) for c in path)
    rest = "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
    return path.encode(), name_host.encode("utf-8"), rest.encode("utf-8")


def grpc_request(host: str, port: int, service: str) -> bytes:
    """A whole HTTP/2 connection with one Check call in it: preface, SETTINGS, HEADERS, DATA."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority(host, port)),
        ("content-type", "application/grpc"),
        ("user-agent", USER_AGENT),
        ("te", "trailers"),
    )
    block = b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)
    message = HealthCheckRequest(service=service).SerializeToString()
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    no_push = b"\x00\x02\x00\x00\x00\x00"
    return _PREFACE + _frame(4, 0, 0, no_push) + _frame(1, 4, 1, block) + _frame(0, 1, 1, body)


def _frame(type: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((type, flags)) + stream.to_bytes(4, "big") + payload


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest = len(raw) - 127
    return bytes((127, rest & 0x7F | 0x80, rest >> 7)) + raw if rest > 0x7F else bytes((127, rest)) + raw
