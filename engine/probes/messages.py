"""Words why a probe failed, as the kubelet's events do. Pure.

The native loop returns a reason and a number. Bodies of failed HTTP probes never get here, so that no
message can leak them; what it returns of a redirect's body is bounded.
"""

from __future__ import annotations

import os
from enum import IntEnum
from urllib.parse import unquote

from engine.api.grpc_codes import NAMES
from engine.probes.request import authority
from engine.probes.spec import ProbeSpec


class Reason(IntEnum):
    """Name the reasons of `table.h`."""

    NONE = 0
    HTTP_STATUS = 1
    FOREIGN_REDIRECT = 2
    CONNECT = 3
    TIMEOUT_CONNECT = 4
    TIMEOUT_RESPONSE = 5
    MALFORMED = 6
    CLOSED = 7
    IO = 8
    BODY = 9
    TIMEOUT_BODY = 10
    LOCATION = 11
    REDIRECTS = 12
    LOCAL = 13
    GRPC_SERVING = 14
    GRPC_STATUS = 15
    GRPC_HTTP = 16
    GRPC_PROTOCOL = 17
    GRPC_CLOSED = 18
    NO_TARGET = 19
    LIBRARY = 20
    EXEC_EXIT = 21
    EXEC_TIMEOUT = 22
    NETWORK = 23


_GRPC_KINDS = ("grpc", "grpcs")
_SERVING = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
HTTP_REASONS = {
    Reason.TIMEOUT_RESPONSE: "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    Reason.TIMEOUT_BODY: "context deadline exceeded (Client.Timeout while reading body)",
    Reason.MALFORMED: "net/http: HTTP/1.x transport connection broken: malformed HTTP response",
    Reason.CLOSED: "EOF",
    Reason.BODY: "unexpected EOF",
    Reason.LOCATION: "failed to parse Location header",
    Reason.REDIRECTS: "stopped after 10 redirects",
}


def exec_text(spec: ProbeSpec, reason: int, detail: int, excerpt: bytes = b"") -> str:
    """Word what went wrong with a command: its output, or why there is none."""
    if reason == Reason.EXEC_EXIT:
        return excerpt.decode(errors="replace")
    if reason == Reason.EXEC_TIMEOUT:
        quoted = " ".join(spec.command)
        return f'command timed out: "{quoted}" timed out after {spec.timeout:g}s'
    if reason == Reason.CONNECT:
        return f"rpc error: code = Unavailable desc = the runtime's socket: {os.strerror(detail).lower()}"
    if reason == Reason.LOCAL:
        return f"this node could not run the command: {os.strerror(detail)}"
    return f"rpc error: {_rpc_error(Reason(reason), detail, excerpt)}"


def text(spec: ProbeSpec, address: str, port: int, reason: int, detail: int, excerpt: bytes = b"") -> str:
    """Word what went wrong with a probe of `address:port`."""
    reason = Reason(reason)
    where = authority(address, port)
    if reason is Reason.HTTP_STATUS:
        return f"HTTP probe failed with statuscode: {detail}"
    if reason is Reason.FOREIGN_REDIRECT:
        return f"Probe terminated redirects, Response body: {excerpt.decode(errors='replace')}"
    if reason is Reason.LOCAL:
        return f"this node could not open a connection to {where}: {os.strerror(detail)}"
    if reason is Reason.NETWORK:
        return f"this node could not enter the pod's network: {os.strerror(detail)}"
    if reason is Reason.NO_TARGET:
        return "the pod has no address yet"
    if reason in (Reason.CONNECT, Reason.TIMEOUT_CONNECT):
        why = "i/o timeout" if reason is Reason.TIMEOUT_CONNECT else f"connect: {os.strerror(detail).lower()}"
        dial = f"dial tcp {where}: {why}"
        if spec.kind in _GRPC_KINDS:
            return (
                f'timeout: failed to connect service "{where}" within {spec.timeout:g}s'
                if reason is Reason.TIMEOUT_CONNECT
                else f'error: failed to connect service at "{where}": {dial}'
            )
        return dial if spec.kind == "tcp" else _get(spec, where, dial)
    if spec.kind in _GRPC_KINDS:
        return _grpc(spec, reason, detail, excerpt)
    why = HTTP_REASONS.get(reason) or _http2(reason, detail) or f"read: {os.strerror(detail).lower()}"
    return _get(spec, where, why)


def _get(spec: ProbeSpec, where: str, why: str) -> str:
    path = spec.path if spec.path.startswith("/") else f"/{spec.path}"
    scheme = "https" if spec.kind == "https" else "http"
    return f'Get "{scheme}://{where}{path}": {why}'


def _grpc(spec: ProbeSpec, reason: Reason, detail: int, excerpt: bytes) -> str:
    if reason is Reason.GRPC_SERVING:
        return f'service unhealthy (responded with "{_SERVING.get(detail, str(detail))}")'
    if reason is Reason.TIMEOUT_RESPONSE:
        return f"timeout: health rpc did not complete within {spec.timeout:g}s"
    if reason is Reason.GRPC_STATUS and detail == 12:
        return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
    return f"error: health rpc probe failed: rpc error: {_rpc_error(reason, detail, excerpt)}"


def _rpc_error(reason: Reason, detail: int, excerpt: bytes) -> str:
    if reason is Reason.GRPC_STATUS:
        code = NAMES[detail] if detail < len(NAMES) else str(detail)
        return f"code = {code} desc = {unquote(excerpt.decode(errors='replace'))}"
    return f"code = Unavailable desc = {_http2(reason, detail) or os.strerror(detail).lower()}"


def _http2(reason: Reason, detail: int) -> str:
    """Word an HTTP/2 error, or return an empty text."""
    return {
        Reason.GRPC_HTTP: f"unexpected HTTP status code {detail}",
        Reason.GRPC_PROTOCOL: "the server's answer is not HTTP/2",
        Reason.GRPC_CLOSED: f"the connection was closed (HTTP/2 error {detail})",
    }.get(reason, "")
