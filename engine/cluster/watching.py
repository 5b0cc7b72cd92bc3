"""Follows a list on the API server: the initial set, then every change.

The steps are those of client-go v1.36. A watch begins with a streaming list (`sendInitialEvents`, ended by an
annotated bookmark), or with LIST and WATCH if the server refuses that. After a clean end it continues at the
last version; after 410 it starts again. Errors are retried with back-off (0.8 s doubling to 30 s, with
jitter, reset after 2 quiet minutes).

A server whose store was replaced by an older one accepts a WATCH from a version that it has not reached yet,
and sends nothing until it reaches it. After such a replacement (`ApiClient.set_back`), no WATCH continues at
an old version, because the server may still cache objects that its store has lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError, Unavailable
from engine.api.meta import ObjectMeta
from engine.cluster.client import ApiClient, ApiError, Status

RETRIES = RetryDelays(0.8, 30.0)
FORGET_AFTER = 120.0
LEAST_SECONDS = 300
GRACE = 60.0
SHORT = 1.0
BYTES_IN_A_TURN = 64 * 1024
KNOWS_NO_STREAMS = (400, 422)
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

T = TypeVar("T", bound="Named")
log = logging.getLogger("kubengine.cluster")


class Named(Protocol):
    """Require metadata, which every watched object has."""

    metadata: ObjectMeta


_First = dict[tuple[str, str], T | None]


class _Bookmark(msgspec.Struct):
    metadata: ObjectMeta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class WatchedResource(msgspec.Struct, Generic[T], frozen=True):
    """Name a list: its path, the type of its objects and a field selector."""

    path: str
    kind: type[T]
    field_selector: str = ""

    def params(self, **more: str) -> dict[str, str]:
        return {"fieldSelector": self.field_selector, **more} if self.field_selector else more


class WatchHandler(msgspec.Struct, Generic[T]):
    """Hold the callbacks of a watch: `replaced` gets the whole set, at first and after a gap; `changed` and
    `deleted` get one object.
    """

    replaced: Callable[[Sequence[T]], None]
    changed: Callable[[T], None]
    deleted: Callable[[T], None]


class ResourceWatch(msgspec.Struct, Generic[T]):
    """Follow one resource until cancelled.

    `synced` is set once the initial set has been received. One WATCH lasts between `least_seconds` and twice
    as long.
    """

    client: ApiClient
    resource: WatchedResource[T]
    handler: WatchHandler[T]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    least_seconds: int = LEAST_SECONDS
    synced: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    trouble: str = ""
    _version: str = ""
    _streams: bool = True

    async def run(self) -> None:
        failures, last = 0, float("-inf")
        while True:
            try:
                await self._follow()
                continue
            except KubengineError as error:
                if str(error) != self.trouble:
                    self.trouble = str(error)
                    log.warning("watching %s: %s", self.resource.path, error)
                # An expired version is not a failure: list again at once, without a pause.
                if isinstance(error, ApiError) and _is_expired(error) and self._version:
                    self._version = ""
                    continue
            now = self.clock()
            failures = 1 if now - last > FORGET_AFTER else failures + 1
            last = now
            # With jitter, since all nodes lose their watches together when an API server restarts.
            await self.pause(RETRIES.after(failures) * random.uniform(1.0, 2.0))

    async def _follow(self) -> None:
        if not self._version or self.client.was_set_back:
            self._version = ""
            if self._streams and await self._stream_list():
                return
            await self._list()
        await self._watch({"resourceVersion": self._version}, None)

    async def _stream_list(self) -> bool:
        """Receive the initial set as a stream, then changes; return False if it must be listed instead.

        A server whose etcd is older than 3.5.8 refuses each stream with an error of its own.
        """
        params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        try:
            await self._watch(params, {})
        except ApiError as error:
            # The initial set was received, so the server supports streaming lists: the watch itself failed.
            if self._version:
                raise
            self._streams = error.code not in KNOWS_NO_STREAMS
            return False
        return True

    async def _list(self) -> None:
        """List the set from the server's cache, or from its store if the cache cannot answer."""
        try:
            listed = await self.client.get(
                self.resource.path, _List, self.resource.params(resourceVersion="0")
            )
        except ApiError as error:
            if not _is_expired(error):
                raise
            listed = await self.client.get(self.resource.path, _List, self.resource.params())
        known = [each async for each in self._objects(listed.items or ())]
        self._replace_all(known, listed.metadata.resource_version)

    async def _objects(self, items: Sequence[msgspec.Raw]) -> AsyncIterator[T]:
        """Decode the objects of a list, about BYTES_IN_A_TURN in one turn of the event loop."""
        decoded = 0
        for item in items:
            known = self._object(item)
            if known is not None:
                yield known
            decoded += memoryview(item).nbytes
            if decoded >= BYTES_IN_A_TURN:
                decoded = 0
                await asyncio.sleep(0)

    def _replace_all(self, items: Sequence[T], version: str) -> None:
        # Called before the version is stored: if the handler raises, the next round lists again.
        self.handler.replaced(items)
        self._version = version
        self.trouble = ""
        self.synced.set()

    async def _watch(self, params: Mapping[str, str], first: _First[T] | None) -> None:
        """Run one WATCH to its end; `first` collects the initial set of a streaming list.

        Raises Unavailable if the watch ends at once without an event, so that it is repeated only after a
        pause, and if the server does not end it in time.
        """
        # Random, so that the watches of a node do not all end at the same time.
        seconds = random.randint(self.least_seconds, 2 * self.least_seconds)
        asked = self.resource.params(
            watch="1", allowWatchBookmarks="true", timeoutSeconds=str(seconds), **params
        )
        began, lines_received = self.clock(), 0
        try:
            async with (
                asyncio.timeout(self.client.timeout if first is not None else seconds + GRACE) as deadline,
                self.client.lines(self.resource.path, asked) as lines,
            ):
                async for line in lines:
                    lines_received += 1
                    now = asyncio.get_running_loop().time()
                    if first is not None:
                        first = self._first(first, self._event(line))
                        # During the initial set, each event extends the deadline, because a large set may
                        # take long.
                        deadline.reschedule(
                            now + (self.client.timeout if first is not None else seconds + GRACE)
                        )
                    else:
                        self._handle(self._event(line))
        except TimeoutError:
            raise Unavailable("the watch stalled and did not end", subject=self.resource.path) from None
        if first is not None:
            raise Unavailable("the initial list ended early", subject=self.resource.path)
        if not lines_received and self.clock() - began < SHORT:
            raise Unavailable("the watch ended at once", subject=self.resource.path)

    def _event(self, line: bytes) -> _Event:
        event = self.client.decode(line, _Event)
        if event.type == "ERROR":
            raise _refusal(self.client.decode(event.object, Status), self.resource.path)
        return event

    def _first(self, known: _First[T], event: _Event) -> _First[T] | None:
        """Handle one event of the initial set, including changes in between; return None when the set is
        complete.
        """
        meta = self.client.decode(event.object, _Bookmark).metadata
        key = meta.namespace, meta.name
        if event.type == "BOOKMARK":
            if (meta.annotations or {}).get(INITIAL_EVENTS_END) != "true":
                return known
            self._replace_all([each for each in known.values() if each is not None], meta.resource_version)
            return None
        if event.type == "DELETED":
            known.pop(key, None)
        else:
            known[key] = self._object(event.object)
        return known

    def _handle(self, event: _Event) -> None:
        self.trouble = ""
        known = self._object(event.object) if event.type != "BOOKMARK" else None
        if known is not None:
            (self.handler.deleted if event.type == "DELETED" else self.handler.changed)(known)
        # Advance the version past a malformed object as well; otherwise the watch would get it again forever.
        self._version = self.client.decode(event.object, _Bookmark).metadata.resource_version

    def _object(self, raw: msgspec.Raw) -> T | None:
        """Decode an object; return None for a malformed one, which is logged while the others continue."""
        try:
            return self.client.decode(raw, self.resource.kind)
        except Unavailable as error:
            log.error("watching %s: object ignored: %s", self.resource.path, error)
            return None


def _is_expired(error: ApiError) -> bool:
    return error.code == 410 or error.reason in ("Expired", "Gone")


def _refusal(status: Status, path: str) -> ApiError:
    return ApiError(status.message, subject=path, code=status.code, reason=status.reason, retry_after=0.0)
