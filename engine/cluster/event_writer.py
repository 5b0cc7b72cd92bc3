"""Writes the agent's events to the API server in the background, with the lowest priority.

Facts of client-go v1.36: a queue of 1,000 (further events are dropped), 12 tries 10 s apart while the server
is unreachable, no retry after a refusal, and a rate limit (`eventRecordQPS`, `eventBurst`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from engine.api.errors import KubengineError
from engine.api.events import Event
from engine.api.timestamps import rfc3339
from engine.api.token_bucket import TokenBucket
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.event_series import EventSeries, EventToWrite

QUEUE: Final = 1000
TRIES: Final = 12
BETWEEN_TRIES: Final = 10.0
COMPONENT: Final = "kubelet"

log = logging.getLogger("kubengine.cluster")


def event_object(entry: EventToWrite, node: str) -> dict[str, Any]:
    """Return the v1 Event. Events about the node have no uid; objects without a namespace use `default`."""
    event = entry.event
    namespace, _, name = event.pod.partition("/")
    about: dict[str, Any] = (
        {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": event.pod_uid}
        if event.pod
        else {"apiVersion": "v1", "kind": "Node", "name": node}
    )
    if event.claim:
        about |= {"kind": "PersistentVolumeClaim", "name": event.claim, "uid": event.claim_uid}
    if event.volume:
        about |= {"kind": "PersistentVolume", "name": event.volume, "uid": event.volume_uid}
    if event.field_path:
        about["fieldPath"] = event.field_path
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": entry.name,
            "namespace": namespace or "default",
            **({"annotations": dict(event.annotations)} if event.annotations else {}),
        },
        "involvedObject": about,
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": rfc3339(entry.first),
        "lastTimestamp": rfc3339(event.at),
        "count": entry.count,
    }


def _is_expected(error: ApiError) -> bool:
    """Tell whether the error is normal: the namespace is being deleted or gone, or the Event exists."""
    return "NamespaceTerminating" in error.causes or error.reason in ("AlreadyExists", "NotFound")


class EventWriter:
    """Queue events with `take`; `run` writes them one after another, limited by `rate`."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        rate: TokenBucket,
        *,
        pause: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self.dropped = 0
        self._rate = rate
        self._client = client
        self._node = node
        self._pause = pause
        self._series = EventSeries()
        self._queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE)

    def add(self, event: Event) -> None:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        while True:
            await self._write(await self._queue.get())

    async def _write(self, event: Event) -> None:
        entry = self._series.next(event, self._name(event))
        if entry is None:
            return
        wait = self._rate.wait(time.monotonic())
        if wait:
            await self._pause(wait)
        for _ in range(TRIES):
            try:
                await self._send(entry)
            except ApiError as error:
                level = logging.DEBUG if _is_expected(error) else logging.WARNING
                log.log(level, "event %s of %s is lost: %s", event.reason, event.pod or "the node", error)
                return
            except KubengineError:
                await self._pause(BETWEEN_TRIES)
            else:
                return

    async def _send(self, entry: EventToWrite) -> None:
        value = event_object(entry, self._node)
        all_events = f"/api/v1/namespaces/{value['metadata']['namespace']}/events"
        # A repeated event increments the count of the existing Event.
        if entry.count > 1:
            patch = {field: value[field] for field in ("count", "lastTimestamp", "message")}
            try:
                await self._client.patch(f"{all_events}/{entry.name}", patch, msgspec.Raw)
            except ApiError as error:
                # The server keeps Events for an hour by default, but this series may be older.
                if error.code != 404:
                    raise
                value = event_object(self._series.recreated(entry, self._name(entry.event)), self._node)
            else:
                return
        await self._client.create(all_events, value, msgspec.Raw)

    def _name(self, event: Event) -> str:
        """Return a name as client-go does: the object and the nanoseconds in hexadecimal."""
        name = event.claim or event.pod.partition("/")[2] or event.volume or self._node
        return f"{name}.{int(event.at * 1e9):x}"
