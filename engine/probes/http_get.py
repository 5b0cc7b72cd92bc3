"""Sends a GET for a probe or a hook, and follows redirects to the same host.

Source: kubelet v1.36 (`pkg/probe/http`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from functools import cache
from traceback import clear_frames
from typing import Final

from engine._fast.probing import response as http
from engine._fast.probing.response import HttpResponse, resolve
from engine.probes.messages import Reason
from engine.probes.networks import NETWORK_OF_THE_NODE, Connection, connect
from engine.probes.request import authority, http_request

MAX_REDIRECTS: Final = 10
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_REASONS: Final = {http.MALFORMED: Reason.MALFORMED, http.BROKEN: Reason.BODY}
"""By verdict on a response; others are responses."""


class HttpGet:
    """Get a URL over HTTP or TLS (the certificate is not verified), and follow redirects to the same host.

    `scheme`, `port`, `path` and `response` are those of the last request. `network` is a descriptor of the
    network namespace to use.
    """

    def __init__(
        self,
        scheme: str,
        host: str,
        port: int,
        path: str,
        headers: Sequence[tuple[str, str]] = (),
        network: int = NETWORK_OF_THE_NODE,
    ) -> None:
        self.scheme, self.host, self.port, self.path = scheme, host, port, path
        self.response = HttpResponse()
        self._headers = headers
        self._network = network

    @property
    def url(self) -> str:
        path = self.path if self.path.startswith("/") else f"/{self.path}"
        return f"{self.scheme}://{authority(self.host, self.port)}{path}"

    async def run(self) -> Reason:
        """Send the request, and one for each redirect. Return NONE for a response of any status, which may
        be a redirect to another host, else the reason why there is none.

        Raises `OSError`, of which `ssl.SSLError` is one, and `InvalidInput` for headers that cannot be sent.
        The caller limits the time.
        """
        for _ in range(MAX_REDIRECTS):
            self.response = HttpResponse()
            verdict = await self._exchange()
            if self.response.status not in _REDIRECTS or not self.response.location:
                return _REASONS.get(verdict, Reason.NONE)
            location = self.response.location.decode(errors="replace")
            scheme = location.partition(":")[0].lower()
            plain = f"http{location[len(scheme) :]}" if scheme == "https" else location
            where, port, path = resolve(plain, self.host, self.path)
            if where == http.FOREIGN:
                return _REASONS.get(verdict, Reason.NONE)
            if where != http.SAME_HOST:
                return Reason.LOCATION
            if scheme == "https":
                self.scheme, self.port = "https", 443 if _portless(location) else port
            elif scheme == "http":
                self.scheme, self.port = "http", port
            elif port:
                self.port = 443 if self.scheme == "https" and _portless(location) else port
            self.path = path
        return Reason.REDIRECTS

    async def _exchange(self) -> int:
        """Send the request and feed the response until there is a verdict, or the headers of a redirect."""
        target, header_host, rest = http_request(self.host, self.port, self.path, self._headers)
        header_host = header_host or authority(self.host, self.port).encode()
        request = b"GET " + target + b" HTTP/1.1\r\nHost: " + header_host + b"\r\n" + rest
        tls = insecure_tls() if self.scheme == "https" else None
        async with connection(self.host, self.port, self._network, tls) as (reader, writer):
            writer.write(request)
            await writer.drain()
            verdict = http.MORE
            while verdict < http.DONE:
                try:
                    data = await reader.read(65536)
                except (ConnectionError, ssl.SSLError):
                    return self.response.eof(reset=True)
                verdict = self.response.feed(data) if data else self.response.eof()
            return verdict


def _portless(location: str) -> bool:
    rest = location.partition("//")[2].partition("/")[0].partition("?")[0]
    return not rest.rpartition("]")[2].rpartition("@")[2].partition(":")[2]


@contextlib.asynccontextmanager
async def connection(
    host: str, port: int, network: int, tls: ssl.SSLContext | None
) -> AsyncIterator[Connection]:
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


@cache
def insecure_tls(protocol: str = "") -> ssl.SSLContext:
    """Return settings that take any certificate, as pods have their own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocol:
        context.set_alpn_protocols([protocol])
    return context
