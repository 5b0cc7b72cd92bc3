"""Serve requests: authenticate the client, dispatch the request, and answer it."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.testing.apiserver import resources, reviews, watches
from engine.testing.apiserver.certificates import DAY, Authority, CertificatePair
from engine.testing.apiserver.faults import ApiServerFault, Faults, Planned
from engine.testing.apiserver.http2 import Http2Answer, Http2Request, ServerConnection, server_context
from engine.testing.apiserver.merging import merge_patch, strategic_merge
from engine.testing.apiserver.paths import ResourcePath, parse_path
from engine.testing.apiserver.selectors import field_selector
from engine.testing.apiserver.store import Object, ObjectStore, StoreError

PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/strategic-merge-patch+json": strategic_merge,
    "application/merge-patch+json": merge_patch,
}
SIGNING_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass(slots=True)
class SeenRequest:
    """Record one request as received: `path` without the query, `user` "" for anonymous, `status` 0 while
    unanswered.
    """

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes
    user: str
    connection: int
    status: int = 0

    @property
    def value(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


class ApiServer:
    """Listen on a free port of 127.0.0.1 (`async with`, or `start` and `stop`; the port stays the same).

    Keeps keys and kubeconfigs in `directory`. `tokens` maps valid bearer tokens to their users; `requests`
    records the requests; `objects` stores the objects; `reviews` decides on access reviews; `documents` are
    answers by path that are no resources, such as those of a node's proxy. With `streaming_lists` off, it
    refuses `sendInitialEvents` as a server without WatchList does.
    `bookmark_seconds` is the interval of bookmarks.
    """

    def __init__(
        self, directory: Path, *, clock: Callable[[], float] = time.time, max_streams: int = 100
    ) -> None:
        self.authority = Authority(directory / "authority")
        self.objects = ObjectStore(clock)
        self.requests: list[SeenRequest] = []
        self.tokens: dict[str, str] = {}
        self.reviews = reviews.ReviewEndpoint()
        self.documents: dict[str, Object] = {}
        self.streaming_lists = True
        self.bookmark_seconds = 60.0
        self._directory = directory
        self._max_streams = max_streams
        self._faults = Faults()
        self._pair = self.authority.issue("kube-apiserver", alternatives="DNS:localhost,IP:127.0.0.1")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._connections: set[ServerConnection] = set()
        self._made = 0
        self._kubeconfigs = 0
        self._watching: dict[asyncio.Task[Any], tuple[str, str]] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Life

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._socket.fileno() < 0:
            self._socket = socket.create_server(("127.0.0.1", self._port))
        self._server = await loop.create_server(self._connect, sock=self._socket, ssl=self._context())

    async def stop(self) -> None:
        """Close the port and break every connection; objects stay for the next `start`."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        connections = list(self._connections)
        self.disconnect()
        for connection in connections:
            await connection.lost.wait()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    @property
    def open_watches(self) -> list[tuple[str, str]]:
        """Return collection and field selector of each active watch."""
        return list(self._watching.values())

    def disconnect(self, user: str = "") -> None:
        """Break every connection, or those on which `user` sent a request."""
        of_user = {seen.connection for seen in self.requests if seen.user == user}
        for connection in list(self._connections):
            if not user or connection.number in of_user:
                connection.abort()

    def end_watches(self) -> None:
        """End every watch cleanly, as a server does after `timeoutSeconds`."""
        for task in list(self._watching):
            task.cancel(_END)

    async def use_certificate(self, pair: CertificatePair) -> None:
        """Switch to another server certificate; every connection is broken."""
        await self.stop()
        self._pair = pair
        await self.start()

    # Faults

    def fail(
        self,
        kind: ApiServerFault | int | None,
        *,
        path: str = "",
        method: str = "",
        user: str = "",
        skip: int = 0,
        times: int | None = 1,
        delay: float = 0.0,
        retry_after: int | None = None,
        reason: str = "",
    ) -> None:
        """Apply a fault to the next `times` requests (None: all) of `user` (empty: any user) whose path
        matches the expression `path`, after the first `skip` of them.

        `kind` is an `ApiServerFault`, an HTTP status, or None for a delay of `delay` seconds only.
        """
        self._faults.plan(
            Planned(kind, method, re.compile(path), user, skip, times, delay, retry_after, reason)
        )

    def heal(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    # Authentication

    def kubeconfig(
        self,
        user: str,
        *,
        organization: str = "system:nodes",
        token: str = "",
        token_file: Path | None = None,
    ) -> Path:
        """Write a kubeconfig for `user`: with `token` or `token_file`, else with a client certificate of its
        own.
        """
        who: dict[str, Any] = {}
        if token:
            self.tokens[token] = user
            who["token"] = token
        elif token_file is not None:
            who["tokenFile"] = str(token_file)
        else:
            pair = self.authority.issue(user, organization=organization)
            who |= {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        cluster = {
            "server": self.url,
            "certificate-authority-data": base64.b64encode(self.authority.certificate.read_bytes()).decode(),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": who}],
        }
        self._kubeconfigs += 1
        path = self._directory / f"{self._kubeconfigs}.kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    # Objects, without the wire

    def get(self, path: str) -> Object:
        return self.objects.get(_resource(path))

    def list(self, path: str) -> list[Object]:
        return self.objects.list(_resource(path))

    def create(self, path: str, value: Object) -> Object:
        """Create an object; `path` is the collection's, with its namespace."""
        return resources.create(self.objects, _resource(path), value)

    def update(self, path: str, value: Object) -> Object:
        return resources.update(self.objects, _resource(path), value)

    def delete(self, path: str, *, grace: int | None = None) -> Object:
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        return resources.delete(self.objects, _resource(path), options)

    def sign_request(self, name: str, *, begin: float | None = None, end: float | None = None) -> bytes:
        """Approve a certificate signing request and sign it, by default for one day from now
        (Unix seconds).
        """
        path = f"{SIGNING_REQUESTS}/{name}"
        value = copy.deepcopy(self.get(path))
        now = time.time()
        signed = self.authority.sign(
            base64.b64decode(value["spec"]["request"]), begin or now, end or now + DAY
        )
        conditions = [{"type": "Approved", "status": "True", "reason": "Test"}]
        value["status"] = {"conditions": conditions, "certificate": base64.b64encode(signed).decode()}
        self.objects.replace(_resource(path), value)
        return signed

    def deny_request(self, name: str) -> None:
        """Deny a certificate signing request."""
        path = f"{SIGNING_REQUESTS}/{name}"
        value = copy.deepcopy(self.get(path))
        value["status"] = {"conditions": [{"type": "Denied", "status": "True", "reason": "Test"}]}
        self.objects.replace(_resource(path), value)

    # Answers

    def _context(self) -> ssl.SSLContext:
        return server_context(
            str(self._pair.certificate), str(self._pair.key), str(self.authority.certificate)
        )

    def _connect(self) -> ServerConnection:
        self._made += 1
        return ServerConnection(
            self._made, self._serve, max_streams=self._max_streams, open_ones=self._connections
        )

    async def _serve(self, request: Http2Request, answer: Http2Answer) -> None:
        url = urlsplit(request.path)
        params = dict(parse_qsl(url.query, keep_blank_values=True))
        seen = SeenRequest(
            request.method,
            url.path,
            params,
            request.headers,
            request.body,
            self._user(request),
            request.connection,
        )
        self.requests.append(seen)
        fault = self._faults.take(seen.method, seen.path, seen.user)
        if fault is not None and not await self._pass(fault, answer, seen):
            return
        try:
            if not seen.user:
                raise StoreError(401, "Unauthorized", "Unauthorized")
            await self._answer(seen, answer)
        except StoreError as error:
            seen.status = error.code
            await _refuse(answer, error, None)
        if fault is not None and fault.kind is ApiServerFault.GO_AWAY:
            answer.go_away()

    async def _pass(self, fault: Planned, answer: Http2Answer, seen: SeenRequest) -> bool:
        """Apply a fault; return whether the request is still answered."""
        await asyncio.sleep(fault.delay)
        match fault.kind:
            case None | ApiServerFault.GO_AWAY:
                return True
            case ApiServerFault.LOST:
                answer.lose()
                return True
            case ApiServerFault.DROP:
                answer.drop()
            case ApiServerFault.RESET:
                answer.reset()
            case ApiServerFault.HANG:
                await asyncio.get_running_loop().create_future()
            case ApiServerFault.FREEZE:
                answer.freeze()
            case ApiServerFault.MALFORMED:
                seen.status = 200
                answer.head(200, content_type="application/json")
                await answer.send(b'{"kind": "Ma\n', end=True)
            case ApiServerFault.TRICKLE | ApiServerFault.ENDLESS:
                seen.status = 200
                answer.head(200, content_type="application/json")
                while True:
                    await answer.send(b" " if fault.kind is ApiServerFault.TRICKLE else b" " * 65536)
                    await asyncio.sleep(0.05 if fault.kind is ApiServerFault.TRICKLE else 0)
            case code:
                seen.status = int(code)
                reason = fault.reason or REASONS.get(int(code), "")
                await _refuse(
                    answer, StoreError(int(code), reason, f"{reason}: on demand"), fault.retry_after
                )
        return False

    def _user(self, request: Http2Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self.tokens.get(token, "") if scheme.lower() == "bearer" else ""
        return request.common_name

    async def _answer(self, seen: SeenRequest, answer: Http2Answer) -> None:
        if seen.path in ("/healthz", "/livez", "/readyz"):
            answer.head(200, content_type="text/plain")
            await answer.send(b"ok", end=True)
            return
        if seen.path in self.documents:
            seen.status = 200
            await _send(answer, 200, self.documents[seen.path])
            return
        path = parse_path(seen.path)
        if path is None and (served := self.objects.resources(seen.path)):
            seen.status = 200
            listed = {"kind": "APIResourceList", "resources": [{"name": name} for name in served]}
            await _send(answer, 200, listed)
            return
        if path is None:
            raise StoreError(404, "NotFound", "the server could not find the requested resource")
        if seen.method == "GET" and not path.name:
            if seen.params.get("watch") in ("1", "true"):
                await self._watch(path, seen, answer)
            else:
                seen.status = 200
                await _send(answer, 200, self._list(path, seen.params))
            return
        code, value = self._object(path, seen)
        seen.status = code
        await _send(answer, code, value)

    def _object(self, path: ResourcePath, seen: SeenRequest) -> tuple[int, Object]:
        match seen.method:
            case "GET":
                return 200, self.objects.get(path)
            case "POST" if path.resource in reviews.REVIEWED:
                return 201, self.reviews.answer(path.resource, _decoded(seen.body), self.tokens)
            case "POST":
                value = _decoded(seen.body)
                make = resources.act if path.subresource else resources.create
                return 201, make(self.objects, path, value)
            case "PUT":
                return 200, resources.update(self.objects, path, _decoded(seen.body))
            case "PATCH":
                merge = PATCHES.get(seen.headers.get("content-type", ""))
                if merge is None:
                    raise StoreError(415, "UnsupportedMediaType", "only merge patches are understood here")
                merged = merge(self.objects.get(path), _decoded(seen.body))
                return 200, resources.update(self.objects, path, merged)
            case "DELETE" if path.name:
                return 200, resources.delete(self.objects, path, _decoded(seen.body or b"{}"))
            case "DELETE":
                return 200, self._delete_all(path, seen.params)
        raise StoreError(405, "MethodNotAllowed", "the server does not allow this method on the resource")

    def _delete_all(self, path: ResourcePath, params: Mapping[str, str]) -> Object:
        listed = self._list(path, params)
        for known in listed["items"]:
            meta = known["metadata"]
            one = replace(path, namespace=meta.get("namespace", path.namespace), name=meta["name"])
            resources.delete(self.objects, one, {})
        return listed

    def _list(self, path: ResourcePath, params: Mapping[str, str]) -> Object:
        selected = _selector(params)
        asked = params.get("resourceVersion") or "0"
        if too_new := watches.too_new(int(asked), self.objects):
            raise too_new
        version, kind = _kind(path)
        items = [known for known in self.objects.list(path) if selected(known)]
        begin = int(params.get("continue") or 0)
        end = begin + (int(params.get("limit") or 0) or len(items))
        metadata = {"resourceVersion": str(self.objects.version)}
        if end < len(items):
            metadata["continue"] = str(end)
        return {
            "apiVersion": version,
            "kind": f"{kind}List",
            "metadata": metadata,
            "items": items[begin:end],
        }

    async def _watch(self, path: ResourcePath, seen: SeenRequest, answer: Http2Answer) -> None:
        params = seen.params
        if "sendInitialEvents" in params and not self.streaming_lists:
            raise StoreError(
                422,
                "Invalid",
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList "
                "feature gate is enabled",
            )
        asked = params.get("resourceVersion") or "0"
        if "sendInitialEvents" in params and (too_new := watches.too_new(int(asked), self.objects)):
            raise too_new
        if asked != "0" and int(asked) < self.objects.oldest:
            raise StoreError(410, "Expired", f"too old resource version: {asked} ({self.objects.oldest})")
        task = asyncio.current_task()
        assert task is not None
        self._watching[task] = path.collection, params.get("fieldSelector", "")
        seen.status = 200
        try:
            answer.head(200, content_type="application/json")
            async for event in watches.events(
                self.objects, path, _selector(params), _kind(path), params, self.bookmark_seconds
            ):
                await answer.send(encode_json(event) + b"\n")
        except StoreError as error:
            await answer.send(encode_json({"type": "ERROR", "object": _status(error)}) + b"\n")
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_END,):
                raise
            task.uncancel()
        finally:
            del self._watching[task]
        await answer.send(b"", end=True)


_END = "the watch ends"


async def _send(answer: Http2Answer, code: int, value: Object) -> None:
    answer.head(code, content_type="application/json")
    await answer.send(encode_json(value), end=True)


async def _refuse(answer: Http2Answer, error: StoreError, retry_after: int | None) -> None:
    headers = {"content_type": "application/json"}
    if retry_after is not None:
        headers["retry_after"] = str(retry_after)
    answer.head(error.code, **headers)
    await answer.send(encode_json(_status(error)), end=True)


def _status(error: StoreError) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.code,
    }


def _decoded(body: bytes) -> Object:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise StoreError(400, "BadRequest", f"the object is not understood: {error}") from None


def _selector(params: Mapping[str, str]) -> Any:
    if params.get("labelSelector"):
        raise StoreError(400, "BadRequest", "label selectors are not understood here")
    return field_selector(params.get("fieldSelector", ""))


def _resource(path: str) -> ResourcePath:
    found = parse_path(path)
    if found is None:
        raise ValueError(f"{path}: not the path of a resource")
    return found


def _kind(path: ResourcePath) -> tuple[str, str]:
    """Return apiVersion and kind, from the names in the path."""
    version = path.collection.split("/", 2)[2].rpartition("/")[0]
    if path.collection.startswith("/api/"):
        version = "v1"
    known = KINDS.get(path.resource)
    return version, known or path.resource.removesuffix("s").capitalize()


KINDS = {
    "configmaps": "ConfigMap",
    "runtimeclasses": "RuntimeClass",
    "csidrivers": "CSIDriver",
    "csinodes": "CSINode",
    "resourceclaims": "ResourceClaim",
    "resourceslices": "ResourceSlice",
    "serviceaccounts": "ServiceAccount",
    "certificatesigningrequests": "CertificateSigningRequest",
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "replicasets": "ReplicaSet",
    "daemonsets": "DaemonSet",
}
