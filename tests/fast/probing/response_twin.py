"""Read an HTTP/1.x response of a probe in plain Python; tests compare the kernel with it.

`parse` works on a whole response. The kernel takes it in pieces and must reach the same verdict.
"""

from __future__ import annotations

import re
import string
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
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_IN_PATH = frozenset(b"-._~$&+,/:;=@%" + string.ascii_letters.encode() + string.digits.encode())
_SOMETIMES = frozenset(b"!'()*[]")


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
    return next((value for name, value in headers if name == b"location"), b"")


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
    if any(not value.isdigit() or len(value) > 18 for value in lengths) or len(set(lengths)) > 1:
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
    value, _, fragment = value.partition("#")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", value)
    if value.startswith(":") or _BAD_ESCAPE.search(fragment):
        return BAD, 0, ""
    if scheme:
        value = value[scheme.end() :]
    elif ":" in re.split("[/?]", value)[0]:
        return BAD, 0, ""
    named = scheme[1].lower() if scheme else ""
    authority = None
    if value.startswith("//") and (scheme or not value.startswith("///")):
        end = re.search(r"[/?]|\Z", value[2:])
        assert end is not None
        authority, value = value[2 : end.start() + 2], value[end.start() + 2 :]
        if not authority and not scheme:
            authority = None
    badly_escaped = bool(_BAD_ESCAPE.search(value.partition("?")[0]))
    if authority is None and scheme:
        return (BAD if badly_escaped and value.startswith("/") else FOREIGN), 0, ""
    port = 0
    if authority is not None:
        parts = re.match(r"(?:\[([^\]]*)\]|([^\[:][^:]*|))(?::([0-9]*))?\Z", authority.rpartition("@")[2])
        if parts is None or badly_escaped:
            return BAD, 0, ""
        if (parts[1] if parts[1] is not None else parts[2]) != host:
            return FOREIGN, 0, ""
        port = int(parts[3] or (443 if named == "https" else 80))
        if named not in ("", "http", "https") or not 0 < port < 65536:
            return BAD, 0, ""
        base = "/"
    if badly_escaped:
        return BAD, 0, ""
    if named == "https":
        return TLS, 0, ""
    path, question, query = value.partition("?")
    value = _escaped(path) + question + query
    if value.startswith("/"):
        path = value
    elif not value:
        path = base
    elif value.startswith("?"):
        path = base.partition("?")[0] + value
    else:
        path = base.partition("?")[0].rpartition("/")[0] + "/" + value
    return SAME_HOST, port, _without_dots(path)


def _escaped(path: str) -> str:
    """Escape what may not stand in a path; if anything is escaped, a few more characters are."""
    data = path.encode()
    kept = _IN_PATH if any(byte not in _IN_PATH | _SOMETIMES for byte in data) else _IN_PATH | _SOMETIMES
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in data)


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
