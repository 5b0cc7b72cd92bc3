"""Runs the probes that need a library: over TLS, and for targets given by host name.

Each returns an outcome and, unless it is a success, the reason. None raises; each ends within its time-out.
`network` is a descriptor of the network namespace to use.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from engine._fast.probing import grpc
from engine._fast.probing.grpc import GrpcAnswer
from engine._fast.probing.state import (
    OUTCOME_ERROR,
    OUTCOME_FAILURE,
    OUTCOME_SUCCESS,
    OUTCOME_WARNING,
)
from engine.probes.http_get import HttpGet, connection, insecure_tls
from engine.probes.messages import Reason, text
from engine.probes.networks import NETWORK_OF_THE_NODE, connect
from engine.probes.request import authority, grpc_request, h2c_request, with_authority
from engine.probes.spec import ProbeSpec

_REASONS = (
    Reason.NONE,
    Reason.GRPC_SERVING,
    Reason.GRPC_STATUS,
    Reason.GRPC_HTTP,
    Reason.GRPC_PROTOCOL,
    Reason.GRPC_CLOSED,
)
"""By verdict of an HTTP/2 response."""


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
            tls = insecure_tls("h2") if secure else None
            async with connection(host, port, network, tls) as (reader, writer):
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
        # A server may answer and then reset the connection: what has arrived decides.
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
    get = HttpGet(spec.kind, host, port, spec.path or "/", spec.headers, network)
    try:
        async with asyncio.timeout(spec.timeout):
            reason = await get.run()
    except TimeoutError:
        in_body = get.response.status != 0 and get.response.in_body
        reason = Reason.TIMEOUT_BODY if in_body else Reason.TIMEOUT_RESPONSE
    except OSError as error:
        why = f"{type(error).__name__}: {error.strerror or error}"
        return LibraryProbeOutcome(OUTCOME_FAILURE, f'Get "{get.url}": {why}')
    if reason is Reason.NONE:
        return _judge_status(spec, host, get.port, get.response.status, get.response.excerpt)
    outcome = OUTCOME_ERROR if reason in (Reason.BODY, Reason.TIMEOUT_BODY) else OUTCOME_FAILURE
    return LibraryProbeOutcome(outcome, text(spec, host, get.port, reason, 0))


def _judge_status(spec: ProbeSpec, host: str, port: int, status: int, excerpt: bytes) -> LibraryProbeOutcome:
    if not 200 <= status < 400:
        return LibraryProbeOutcome(OUTCOME_FAILURE, text(spec, host, port, Reason.HTTP_STATUS, status))
    if status >= 300:
        return LibraryProbeOutcome(
            OUTCOME_WARNING, text(spec, host, port, Reason.FOREIGN_REDIRECT, status, excerpt)
        )
    return LibraryProbeOutcome(OUTCOME_SUCCESS)
