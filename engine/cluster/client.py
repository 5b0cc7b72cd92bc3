"""Calls the API server: typed objects in JSON over a pool of HTTP/2 connections."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from engine.api.errors import Refused, Unavailable
from engine.api.struct import decode_hook, to_json
from engine.api.token_bucket import TokenBucket
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import Kubeconfig
from engine.metrics import Registry
from engine.transport.http2 import Exchange
from engine.transport.pool import Http2Pool

REQUEST_SECONDS: Final = 60.0
"""The deadline of a call in seconds, after which an API server gives up most calls itself
(`--request-timeout`).
"""
HEARTBEAT_SECONDS: Final = 10.0
"""The deadline of a call for a Node or a lease: several attempts fit into a lease of 40 s if the server hangs
(kubelet v1.36).
"""
MAX_ANSWER: Final = 64 << 20
MAX_ERROR: Final = 64 << 10
MAX_LINE: Final = 16 << 20
"""The maximum bytes of one watch event: ten times etcd's limit for an object."""
LINES_IN_A_TURN: Final = 64
LONGEST_WAIT: Final = 60.0
"""The maximum seconds of a Retry-After that are respected."""
TRIES_WHEN_BUSY: Final = 10
STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"
_HEARTBEATS: Final = re.compile(r"/api/v1/nodes/[^/]+(/status)?|/apis/coordination\.k8s\.io/.*/leases(/.*)?")
_EVENTS: Final = re.compile(r"/api/v1/namespaces/[^/]+/events(/.*)?")

T = TypeVar("T")
FAILED: Final = "<error>"
_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class ApiError(Refused):
    """Raised if the API server refuses a request.

    `code` is the HTTP status, `reason` Kubernetes' word for it (`NotFound`, `AlreadyExists`, `Conflict`,
    `Expired`, `Forbidden`, …), `retry_after` the seconds to wait if the server named them, `causes` the
    reasons of its details (`NamespaceTerminating`, …).
    """

    def __init__(
        self,
        message: str,
        *,
        subject: str,
        code: int,
        reason: str,
        retry_after: float,
        causes: tuple[str, ...] = (),
    ) -> None:
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.causes = causes
        super().__init__(message, subject=subject)


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: float = 0.0
    causes: tuple[_Cause, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """Hold the fields of metav1.Status that the client reads."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_statuses = msgspec.json.Decoder(Status)


class ApiClient:
    """Call one API server as one user. `timeout` (seconds) is the deadline of a call; calls for a Node or a
    lease have at most HEARTBEAT_SECONDS.

    Every method raises `ApiError` if the server refuses and `Unavailable` if it cannot be reached in time.
    After 429, a call is retried after the server's Retry-After; after 401, it is retried once with reloaded
    credentials. `rate` limits all calls but watches, events and the node's heartbeats (its Node and lease),
    as in the kubelet; the wait does not count towards a call's deadline.
    """

    def __init__(
        self,
        config: Kubeconfig,
        credentials: Credentials,
        *,
        user_agent: str,
        timeout: float = REQUEST_SECONDS,
        registry: Registry | None = None,
        rate: TokenBucket | None = None,
    ) -> None:
        self._rate = rate
        self._prefix = config.prefix
        self._credentials = credentials
        self._agent = user_agent
        self.timeout = timeout
        self.was_set_back = False
        self._pool = Http2Pool(config.server, credentials.context)
        self._requests = RequestMetrics(registry or Registry(), self.peer)
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        credentials.on_change(self._pool.reset)

    async def get(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T:
        return await self._object("GET", path, kind, params=params)

    async def create(self, path: str, value: Any, kind: type[T]) -> T:
        return await self._object("POST", path, kind, body=to_json(value))

    async def update(self, path: str, value: Any, kind: type[T]) -> T:
        return await self._object("PUT", path, kind, body=to_json(value))

    async def patch(self, path: str, value: Any, kind: type[T], *, form: str = STRATEGIC_MERGE) -> T:
        return await self._object("PATCH", path, kind, body=to_json(value), content_type=form)

    async def delete(self, path: str, options: Any, params: Mapping[str, str] | None = None) -> None:
        """Delete an object, or the objects of a collection that `params` select."""
        await self._object("DELETE", path, msgspec.Raw, params=params, body=to_json(options))

    @asynccontextmanager
    async def lines(self, path: str, params: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a watch. Its response headers have the deadline of any other call."""
        deadline = self._deadline(path)
        try:
            async with asyncio.timeout(deadline):
                # Only the response headers have a deadline; the body of a watch has none.
                exchange = await self._request("GET", path, params, b"", "")
        except TimeoutError:
            raise _too_late(deadline, f"{self.peer}: GET {path}") from None
        async with exchange:
            yield _split(exchange)

    def decode(self, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        """Decode an object. Raises Unavailable for malformed data, since the server may recover."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind, dec_hook=decode_hook)
        try:
            decoded: T = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(
                f"the response is not a valid {_name(kind)}: {error}", subject=self.peer
            ) from None
        return decoded

    def set_back(self) -> None:
        """Handle that the server's store was replaced by an older one, which invalidates all known resource
        versions.

        Closes every connection; `was_set_back` keeps watches from continuing at an old version.
        """
        self.was_set_back = True
        self._pool.reset()

    @property
    def peer(self) -> str:
        return self._pool.server.authority

    def close(self) -> None:
        self._pool.close()

    async def _object(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, str] | None = None,
        body: bytes = b"",
        content_type: str = "application/json",
    ) -> T:
        subject, deadline = f"{self.peer}: {method} {path}", self._deadline(path)
        if self._rate is not None and not _is_unlimited(path):
            wait = self._rate.wait(time.monotonic())
            if wait:
                await asyncio.sleep(wait)
        try:
            async with asyncio.timeout(deadline):
                exchange = await self._request(method, path, params or {}, body, content_type)
                async with exchange:
                    data = await exchange.read(MAX_ANSWER)
        except TimeoutError:
            raise _too_late(deadline, subject) from None
        return self.decode(data, kind)

    def _deadline(self, path: str) -> float:
        return min(self.timeout, HEARTBEAT_SECONDS) if _HEARTBEATS.fullmatch(path) else self.timeout

    async def _request(
        self, method: str, path: str, params: Mapping[str, str], body: bytes, content_type: str
    ) -> Exchange:
        """Send a request and return a successful response; retries where the server asks for it."""
        target = self._prefix + path + (f"?{urlencode(params, quote_via=quote)}" if params else "")
        busy = 0
        refused: int | None = None
        while True:
            # Refreshed before each attempt: a token or certificate may have been renewed on disk.
            await self._credentials.refresh(refused=refused)
            reading = self._credentials.reading
            headers = [
                ("user-agent", self._agent),
                ("accept", "application/json"),
                *self._credentials.headers(),
            ]
            if body:
                headers += [("content-type", content_type), ("content-length", str(len(body)))]
            exchange = await self._counted(method, target, headers, body)
            if exchange.status < 300:
                return exchange
            async with exchange:
                error = await self._error(exchange, method, path)
            # Only once: credentials that are refused after a reload are wrong, not outdated.
            if error.code == 401 and refused is None:
                refused = reading
            elif error.code == 429 and busy < TRIES_WHEN_BUSY:
                busy += 1
                # With jitter, since all clients of a busy server get the same Retry-After.
                await asyncio.sleep((error.retry_after or 1.0) * random.uniform(1.0, 1.2))
            else:
                raise error

    async def _counted(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> Exchange:
        began = time.perf_counter()
        try:
            exchange = await self._pool.request(method, target, headers, body)
        except BaseException:
            self._requests.failed(method, time.perf_counter() - began)
            raise
        self._requests.answered(method, exchange.status, time.perf_counter() - began)
        return exchange

    async def _error(self, exchange: Exchange, method: str, path: str) -> ApiError:
        body = await exchange.read(MAX_ERROR)
        try:
            status = _statuses.decode(body)
        # Proxies and load balancers in front of an API server answer with HTML or plain text.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            status = Status(message=body[:300].decode(errors="replace"))
        details = status.details or _Details()
        return ApiError(
            status.message or f"HTTP status {exchange.status}",
            subject=f"{self.peer}: {method} {path}",
            code=exchange.status,
            reason=status.reason,
            retry_after=_seconds(exchange.headers.get("retry-after", ""), details.retry_after_seconds),
            causes=tuple(cause.reason for cause in details.causes or ()),
        )


def _too_late(deadline: float, subject: str) -> Unavailable:
    return Unavailable(f"no answer within {deadline:g} s", subject=subject)


def _is_unlimited(path: str) -> bool:
    """Tell whether the call is about nodes, leases or an event, which the kubelet sends through clients of
    their own, outside this rate limit. Lists of nodes and their registration are among them, but no
    heartbeats.
    """
    node_or_lease = path.startswith(("/api/v1/nodes", "/apis/coordination.k8s.io/"))
    return node_or_lease or _EVENTS.fullmatch(path) is not None


def _seconds(header: str, in_details: float) -> float:
    """Return the wait that the server asks for, at most LONGEST_WAIT; 0 if absent or malformed."""
    asked = float(header) if header.isascii() and header.isdigit() else in_details
    return min(max(asked, 0.0), LONGEST_WAIT)


async def _split(exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield lines without the newline, at most LINES_IN_A_TURN in a turn of the event loop.

    Raises Refused where one is longer than MAX_LINE.
    """
    rest = bytearray()
    async for data in exchange.chunks():
        rest += data
        # A hostile or broken server that sends no newline would otherwise exhaust the memory.
        if len(rest) > MAX_LINE:
            raise Refused(f"an event of more than {MAX_LINE} bytes")
        # Split only when a newline arrives: splitting for each chunk of a long line would take quadratic
        # time.
        if b"\n" not in data:
            continue
        *lines, tail = rest.split(b"\n")
        rest = bytearray(tail)
        for number, line in enumerate(lines, 1):
            if line:
                yield bytes(line)
            if number % LINES_IN_A_TURN == 0:
                await asyncio.sleep(0)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


class RequestMetrics:
    """Measure the requests of one client; `host` is its server with port."""

    def __init__(self, registry: Registry, host: str) -> None:
        self._host = host
        self._total = registry.counter(
            "rest_client_requests_total",
            "Requests to the API server, by HTTP status, method and server.",
            ["code", "method", "host"],
        )
        self._seconds = registry.histogram(
            "rest_client_request_duration_seconds",
            "Time until the API server began to answer, by method and server.",
            ["verb", "host"],
            _BUCKETS,
        )

    def answered(self, method: str, status: int, seconds: float) -> None:
        self._count(method, str(status), seconds)

    def failed(self, method: str, seconds: float) -> None:
        """Count a request without a response, or one whose caller was cancelled."""
        self._count(method, FAILED, seconds)

    def _count(self, method: str, code: str, seconds: float) -> None:
        self._total.inc(code, method, self._host)
        self._seconds.observe(seconds, method, self._host)
