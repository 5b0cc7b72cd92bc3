"""Read an HTTP/1.x response of a probe in plain Python; tests compare the kernel with it.

`parse` works on a whole response. The kernel takes it in pieces and must reach the same verdict.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from engine._fast.probing.response import BAD, BROKEN, DONE, FOREIGN, MALFORMED, SAME_HOST, TLS

BODY_ENOUGH = 10240
EXCERPT = 512
HEADER_LIMIT = 10 << 20
VALUE_LIMIT = 2048
CHUNK_LINE_LIMIT = 4096

_STATUS_LINE = re.compile(rb"HTTP/([0-9])\.([0-9]) +([0-9]{3})(?: .*)?\Z", re.DOTALL)
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z ]+\Z")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*|;[^\r]*)\r\Z", re.DOTALL)
_TRAILER = re.compile(rb"(?! )([!#$%&'*+\-.^_`|~0-9A-Za-z ]+):[^\x00-\x08\x0a-\x1f\x7f]*\Z")


class ProbeResponse(NamedTuple):
    """Hold DONE, MALFORMED or BROKEN; the other fields are meaningful only for DONE."""

    verdict: int
    status: int = 0
    location: bytes = b""
    excerpt: bytes = b""


class _Refused(Exception):
    pass


def parse(data: bytes, *, reset: bool = False) -> ProbeResponse:
    """Read a response whose connection was closed (or reset) after `data`."""
    try:
        status, headers, rest = _headers(data)
        length, chunked = _framing(status, headers)
    except _Refused:
        return ProbeResponse(MALFORMED)
    verdict, body = _chunked(rest) if chunked else _counted(rest, length, reset)
    excerpt = body[:EXCERPT]
    return (
        ProbeResponse(verdict, status, _location(headers), excerpt)
        if verdict == DONE
        else ProbeResponse(verdict)
    )


def _location(headers: list[tuple[bytes, bytes]]) -> bytes:
    return next((value for name, value in headers if name == b"location" and value), b"")


def _headers(data: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    start = data
    while True:
        line, data = _line(data)
        match = _STATUS_LINE.match(line)
        if match is None:
            raise _Refused
        status, version = int(match[3]), (int(match[1]), int(match[2]))
        headers: list[tuple[bytes, bytes]] = []
        while True:
            line, data = _line(data)
            if len(start) - len(data) > HEADER_LIMIT:
                raise _Refused
            if not line:
                break
            if line[0] in b" \t":
                if not headers:
                    raise _Refused
                name, value = headers.pop()
                value = value.rstrip(b" \t")
                line = name + b":" + value + (b" " if value else b"") + line.lstrip(b" \t")
            name, colon, value = line.partition(b":")
            if not colon or not _NAME.match(name) or _BAD_VALUE.search(value):
                raise _Refused
            headers.append((name.lower(), value.lstrip(b" \t")))
        headers = [(name, value.rstrip(b" \t")) for name, value in headers]
        if not 100 <= status < 200 or status == 101:
            if version < (1, 1):
                headers = [(name, value) for name, value in headers if name != b"transfer-encoding"]
            return status, headers, data


def _line(data: bytes) -> tuple[bytes, bytes]:
    line, end, rest = data.partition(b"\n")
    if not end:
        raise _Refused
    return line.removesuffix(b"\r"), rest


def _framing(status: int, headers: list[tuple[bytes, bytes]]) -> tuple[int | None, bool]:
    for name, value in headers:
        if name in (b"location", b"content-length", b"transfer-encoding") and len(value) > VALUE_LIMIT:
            raise _Refused
    lengths = [value for name, value in headers if name == b"content-length"]
    if any(not value.isdigit() or len(value) > 18 for value in lengths) or len({int(v) for v in lengths}) > 1:
        raise _Refused
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if encodings not in ([], [b"chunked"]):
        raise _Refused
    if status in (101, 204, 304):
        return 0, False
    return (int(lengths[0]) if lengths else None), bool(encodings)


def _counted(body: bytes, length: int | None, reset: bool) -> tuple[int, bytes]:
    body = body if length is None else body[:length]
    if len(body) >= BODY_ENOUGH or len(body) == length or (length is None and not reset):
        return DONE, body
    return BROKEN, body


def _chunked(data: bytes) -> tuple[int, bytes]:
    body = b""
    try:
        while True:
            line, end, data = data.partition(b"\n")
            match = _CHUNK_SIZE.match(line)
            if not end or match is None or len(line) >= CHUNK_LINE_LIMIT:
                return BROKEN, body
            size = int(match[1], 16)
            if size == 0:
                return _trailers(data), body
            body += data[:size]
            if len(body) >= BODY_ENOUGH:
                return DONE, body
            if len(data) < size:
                return BROKEN, body
            if data[size : size + 2] != b"\r\n":
                return BROKEN, body
            data = data[size + 2 :]
    except _Refused:
        return BROKEN, body


def _trailers(data: bytes) -> int:
    total = 0
    first = True
    while True:
        line, end, rest = data.partition(b"\n")
        total += len(line) + 1
        if not end or not line.endswith(b"\r") or total > CHUNK_LINE_LIMIT:
            return BROKEN
        line = line[:-1]
        if not line:
            return DONE
        folded = b"X:" + line if line[:1] in b" \t" and not first else line
        if not _TRAILER.match(folded):
            return BROKEN
        first, data = False, rest


def resolve(value: str, host: str, base: str) -> tuple[int, int, str]:
    """Resolve a Location of a response from `http://host…base`: return verdict, port (0 if unchanged), path.

    Port and path count only when the verdict is SAME_HOST.
    """
    if re.search(r"[\x00-\x1f\x7f]", value):
        return BAD, 0, ""
    value = value.partition("#")[0]
    scheme = re.match(r"([^:/?]*):", value)
    tls = False
    if scheme:
        if not scheme[1]:
            return BAD, 0, ""
        tls = scheme[1] == "https"
        value = value[scheme.end() :]
        if scheme[1] not in ("http", "https") or not value.startswith("//"):
            return FOREIGN, 0, ""
    port = 0
    if value.startswith("//"):
        end = re.search(r"[/?]", value[2:])
        authority, value = (value[2 : end.start() + 2], value[end.start() + 2 :]) if end else (value[2:], "")
        authority = authority.rpartition("@")[2]
        parts = re.match(r"(?:\[([^\]]*)\]|([^\[:][^:]*|))(?::([0-9]*))?\Z", authority)
        if parts is None:
            return BAD, 0, ""
        port = int(parts[3] or (443 if tls else 80))
        if not 0 < port < 65536:
            return BAD, 0, ""
        if (parts[1] if parts[1] is not None else parts[2]) != host:
            return FOREIGN, 0, ""
        base = "/"
    if tls:
        return TLS, 0, ""
    if value.startswith("/"):
        path = value
    elif not value:
        path = base
    elif value.startswith("?"):
        path = base.partition("?")[0] + value
    else:
        path = base.partition("?")[0].rpartition("/")[0] + "/" + value
    if " " in path:
        return BAD, 0, ""
    return SAME_HOST, port, _without_dots(path)


def _without_dots(path: str) -> str:
    path, question, query = path.partition("?")
    kept: list[str] = []
    segments = path.removeprefix("/").split("/")
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept) + question + query
