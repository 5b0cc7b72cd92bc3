"""Probes that need a library: HTTPS, and targets given by host name.

Each returns an outcome and, unless it is a success, why. None raises; each ends within its time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from functools import cache
from typing import NamedTuple

from engine._fast.probing import _response_py as http
from engine._fast.probing._state_py import (
    OUTCOME_ERROR,
    OUTCOME_FAILURE,
    OUTCOME_SUCCESS,
    OUTCOME_WARNING,
)
from engine._fast.probing.response import HttpResponse, resolve
from engine.probes.messages import Reason, text
from engine.probes.request import authority, http_request
from engine.probes.spec import ProbeSpec

MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)


class Outcome(NamedTuple):
    outcome: int
    text: str = ""


async def run_tcp(spec: ProbeSpec, host: str, port: int) -> Outcome:
    try:
        async with asyncio.timeout(spec.timeout):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except TimeoutError:
        return Outcome(OUTCOME_FAILURE, text(spec, host, port, Reason.TIMEOUT_CONNECT, 0))
    except OSError as error:
        return Outcome(OUTCOME_FAILURE, f"dial tcp {authority(host, port)}: {error.strerror or error}")
    return Outcome(OUTCOME_SUCCESS)


async def run_http(spec: ProbeSpec, host: str, port: int) -> Outcome:
    """GET over HTTP or TLS (the certificate is not verified), redirects of the same host followed."""
    scheme, path, at = spec.kind, spec.path or "/", port
    response = HttpResponse()
    try:
        async with asyncio.timeout(spec.timeout):
            for _ in range(MAX_REDIRECTS):
                response = HttpResponse()
                verdict = await _exchange(response, scheme, spec, host, at, path)
                if response.status not in _REDIRECTS or not response.location:
                    return _judge(spec, host, at, verdict, response)
                location = response.location.decode(errors="replace")
                where, new_port, new_path = resolve(location.replace("https://", "http://", 1), host, path)
                if where == http.FOREIGN:
                    return _judge(spec, host, at, verdict, response)
                if where != http.SAME_HOST:
                    return Outcome(OUTCOME_FAILURE, text(spec, host, at, Reason.LOCATION, 0))
                if location.startswith("https:"):
                    scheme, at = "https", 443 if _portless(location) else new_port
                elif location.startswith("http:"):
                    scheme, at = "http", new_port
                elif new_port:
                    at = 443 if scheme == "https" and _portless(location) else new_port
                path = new_path
            return Outcome(OUTCOME_FAILURE, text(spec, host, at, Reason.REDIRECTS, 0))
    except TimeoutError:
        in_body = response.status != 0 and response.in_body
        reason = Reason.TIMEOUT_BODY if in_body else Reason.TIMEOUT_RESPONSE
        return Outcome(OUTCOME_ERROR if in_body else OUTCOME_FAILURE, text(spec, host, at, reason, 0))
    except (OSError, ssl.SSLError) as error:
        why = f"{type(error).__name__}: {error.strerror or error}"
        return Outcome(OUTCOME_FAILURE, f'Get "{scheme}://{authority(host, at)}{path}": {why}')


def _portless(location: str) -> bool:
    rest = location.partition("//")[2].partition("/")[0].partition("?")[0]
    return not rest.rpartition("]")[2].rpartition("@")[2].partition(":")[2]


async def _exchange(
    response: HttpResponse, scheme: str, spec: ProbeSpec, host: str, port: int, path: str
) -> int:
    """Send the request and feed the answer until a verdict, or until the headers of a redirect are in."""
    target, header_host, rest = http_request(host, port, path, spec.headers)
    header_host = header_host or authority(host, port).encode()
    request = b"GET " + target + b" HTTP/1.1\r\nHost: " + header_host + b"\r\n" + rest
    context = _tls() if scheme == "https" else None
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=host if context else None
    )
    try:
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
    finally:
        with contextlib.suppress(OSError):
            writer.transport.abort()


def _judge(spec: ProbeSpec, host: str, port: int, verdict: int, response: HttpResponse) -> Outcome:
    status = response.status
    if verdict == http.MALFORMED:
        return Outcome(OUTCOME_FAILURE, text(spec, host, port, Reason.MALFORMED, 0))
    if verdict == http.BROKEN:
        return Outcome(OUTCOME_ERROR, text(spec, host, port, Reason.BODY, 0))
    if not 200 <= status < 400:
        return Outcome(OUTCOME_FAILURE, text(spec, host, port, Reason.HTTP_STATUS, status))
    if status >= 300:
        excerpt = response.excerpt
        return Outcome(OUTCOME_WARNING, text(spec, host, port, Reason.FOREIGN_REDIRECT, status, excerpt))
    return Outcome(OUTCOME_SUCCESS)


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
