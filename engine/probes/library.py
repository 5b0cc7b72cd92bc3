"""Runs the probes that need a library: over TLS, and for targets given by host name.

Each returns an outcome and, unless it is a success, the reason. None raises; each ends within its time-out.
`network` is a descriptor of the network namespace to use.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from functools import cache
from traceback import clear_frames
from typing import NamedTuple

from engine._fast.probing import grpc
from engine._fast.probing import response as http
from engine._fast.probing.grpc import GrpcAnswer
from engine._fast.probing.response import HttpResponse, resolve
from engine._fast.probing.state import (
    OUTCOME_ERROR,
    OUTCOME_FAILURE,
    OUTCOME_SUCCESS,
    OUTCOME_WARNING,
)
from engine.probes.messages import Reason, text
from engine.probes.networks import NETWORK_OF_THE_NODE, connect
from engine.probes.request import authority, grpc_request, h2c_request, http_request, with_authority
from engine.probes.spec import ProbeSpec

MAX_REDIRECTS = 10
_REASONS = (
    Reason.NONE,
    Reason.GRPC_SERVING,
    Reason.GRPC_STATUS,
    Reason.GRPC_HTTP,
    Reason.GRPC_PROTOCOL,
    Reason.GRPC_CLOSED,
)
"""By verdict of an HTTP/2 response."""
_REDIRECTS = (301, 302, 303, 307, 308)


class LibraryProbeOutcome(NamedTuple):
    outcome: int
    text: str = ""


async def run(
    spec: ProbeSpec, host: str, port: int, network: int = NETWORK_OF_THE_NODE
) -> LibraryProbeOutcome:
    """Run one attempt of a probe of any kind but exec."""
    match spec.kind:
        case "tcp":
            return await run_tcp(spec, host, port, network)
        case "http" | "https":
            return await run_http(spec, host, port, network)
        case _:
            return await run_http2(spec, host, port, network)


async def run_tcp(
    spec: ProbeSpec, host: str, port: int, network: int = NETWORK_OF_THE_NODE
) -> LibraryProbeOutcome:
    try:
        async with asyncio.timeout(spec.timeout):
            _, writer = await connect(host, port, network)
            writer.close()
    except TimeoutError:
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, Reason.TIMEOUT_CONNECT, 0))
    except OSError as error:
        return LibraryProbeOutcome(
            OUTCOME_FAILURE, f"dial tcp {authority(host, port)}: {error.strerror or error}"
        )
    return LibraryProbeOutcome(OUTCOME_SUCCESS)


async def run_http2(
    spec: ProbeSpec, host: str, port: int, network: int = NETWORK_OF_THE_NODE
) -> LibraryProbeOutcome:
    """Run a gRPC health check with or without TLS (the certificate is not verified), or a GET without TLS."""
    secure, name = spec.kind == "grpcs", authority(host, port).encode()
    connected = False
    try:
        if spec.kind == "h2c":
            head, own, tail = h2c_request(host, port, spec.path, spec.headers)
            answer = GrpcAnswer(grpc.GET)
        else:
            (head, tail), own = grpc_request(spec.service, "https" if secure else "http"), b""
            answer = GrpcAnswer(grpc.HEALTH)
        async with asyncio.timeout(spec.timeout):
            async with _connection(host, port, network, _tls("h2") if secure else None) as (reader, writer):
                connected = True
                writer.write(with_authority(head, own or name, tail))
                await _read_http2(answer, reader, writer)
    except TimeoutError:
        reason = Reason.TIMEOUT_RESPONSE if connected else Reason.TIMEOUT_CONNECT
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, reason, 0))
    except (OSError, ssl.SSLError) as error:
        why = f"{type(error).__name__}: {error.strerror or error}"
        return LibraryProbeOutcome(
            OUTCOME_FAILURE, f'error: failed to connect service at "{authority(host, port)}": {why}'
        )
    return _judge_http2(spec, host, port, *answer.result())


async def _read_http2(answer: GrpcAnswer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    verdict = grpc.MORE
    while verdict == grpc.MORE:
        try:
            data = await reader.read(65536)
        except (ConnectionError, ssl.SSLError):
            data = b""
        verdict = answer.feed(data) if data else answer.eof()
        if verdict == grpc.MORE and (reply := answer.reply()):
            writer.write(reply)


def _judge_http2(
    spec: ProbeSpec, host: str, port: int, verdict: int, detail: int, words: bytes
) -> LibraryProbeOutcome:
    reason = _REASONS[verdict]
    if verdict != grpc.ANSWERED:
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, reason, detail, words))
    if spec.kind != "h2c":
        if detail == 1:
            return LibraryProbeOutcome(OUTCOME_SUCCESS)
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, reason, detail))
    return _judge_status(spec, host, port, detail, b"")


async def run_http(
    spec: ProbeSpec, host: str, port: int, network: int = NETWORK_OF_THE_NODE
) -> LibraryProbeOutcome:
    """Run a GET over HTTP or TLS (the certificate is not verified), following redirects to the same host."""
    scheme, path, at = spec.kind, spec.path or "/", port
    response = HttpResponse()
    try:
        async with asyncio.timeout(spec.timeout):
            for _ in range(MAX_REDIRECTS):
                response = HttpResponse()
                verdict = await _exchange(response, scheme, spec, host, at, path, network)
                if response.status not in _REDIRECTS or not response.location:
                    return _judge(spec, host, at, verdict, response)
                location = response.location.decode(errors="replace")
                where, new_port, new_path = resolve(location.replace("https://", "http://", 1), host, path)
                if where == http.FOREIGN:
                    return _judge(spec, host, at, verdict, response)
                if where != http.SAME_HOST:
                    return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, at, Reason.LOCATION, 0))
                if location.startswith("https:"):
                    scheme, at = "https", 443 if _portless(location) else new_port
                elif location.startswith("http:"):
                    scheme, at = "http", new_port
                elif new_port:
                    at = 443 if scheme == "https" and _portless(location) else new_port
                path = new_path
            return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, at, Reason.REDIRECTS, 0))
    except TimeoutError:
        in_body = response.status != 0 and response.in_body
        reason = Reason.TIMEOUT_BODY if in_body else Reason.TIMEOUT_RESPONSE
        return LibraryProbeOutcome(
            OUTCOME_ERROR if in_body else OUTCOME_FAILURE, text(spec, host, at, reason, 0)
        )
    except (OSError, ssl.SSLError) as error:
        why = f"{type(error).__name__}: {error.strerror or error}"
        return LibraryProbeOutcome(OUTCOME_FAILURE, f'Get "{scheme}://{authority(host, at)}{path}": {why}')


def _portless(location: str) -> bool:
    rest = location.partition("//")[2].partition("/")[0].partition("?")[0]
    return not rest.rpartition("]")[2].rpartition("@")[2].partition(":")[2]


async def _exchange(
    response: HttpResponse, scheme: str, spec: ProbeSpec, host: str, port: int, path: str, network: int
) -> int:
    """Send the request and feed the response until there is a verdict, or the headers of a redirect."""
    target, header_host, rest = http_request(host, port, path, spec.headers)
    header_host = header_host or authority(host, port).encode()
    request = b"GET " + target + b" HTTP/1.1\r\nHost: " + header_host + b"\r\n" + rest
    async with _connection(host, port, network, _tls() if scheme == "https" else None) as (reader, writer):
        writer.write(request)
        await writer.drain()
        verdict = http.MORE
        while verdict < http.DONE:
            try:
                data = await reader.read(65536)
            except (ConnectionError, ssl.SSLError):
                return response.eof(reset=True)
            verdict = response.feed(data) if data else response.eof()
        return verdict


@contextlib.asynccontextmanager
async def _connection(
    host: str, port: int, network: int, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection that is aborted at the end. Raises `OSError`.

    The frames of a failure are cleared: they form a cycle with the exception, which the reader keeps, and
    the cycle holds OpenSSL's memory. A container may fail its probe every second.
    """
    try:
        reader, writer = await connect(host, port, network, ssl=tls, server_hostname=host if tls else None)
    except BaseException as error:
        clear_frames(error.__traceback__)
        raise
    try:
        yield reader, writer
    finally:
        with contextlib.suppress(OSError):
            writer.transport.abort()
        if (failure := reader.exception()) is not None:
            failure.with_traceback(None)


def _judge(
    spec: ProbeSpec, host: str, port: int, verdict: int, response: HttpResponse
) -> LibraryProbeOutcome:
    if verdict == http.MALFORMED:
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, Reason.MALFORMED, 0))
    if verdict == http.BROKEN:
        return LibraryProbeOutcome(OUTCOME_ERROR, text(spec, host, port, Reason.BODY, 0))
    return _judge_status(spec, host, port, response.status, response.excerpt)


def _judge_status(spec: ProbeSpec, host: str, port: int, status: int, excerpt: bytes) -> LibraryProbeOutcome:
    if not 200 <= status < 400:
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, Reason.HTTP_STATUS, status))
    if status >= 300:
        return LibraryProbeOutcome(
            OUTCOME_WARNING, text(spec, host, port, Reason.FOREIGN_REDIRECT, status, excerpt)
        )
    return LibraryProbeOutcome(OUTCOME_SUCCESS)


@cache
def _tls(protocol: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocol:
        context.set_alpn_protocols([protocol])
    return context
