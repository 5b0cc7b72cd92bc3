"""Tells the watchers of the pods API what changes, each within a budget, and never an older state later.

A watcher gets ADDED for each pod that the node has, then INITIAL_SYNC_COMPLETE, then one event for each
change. A pod is encoded once for all watchers, and only while there are some. Pure but for its events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from engine.api.errors import Refused
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.protobuf.pods import encode_pod, encode_pod_document
from engine.metrics import Registry

ADDED, MODIFIED, DELETED, INITIAL_SYNC_COMPLETE = 1, 2, 3, 4
MOST_WATCHERS: Final = 100
MOST_EVENTS: Final = 1000
MOST_BYTES: Final = 8 << 20
"""Bytes of the events that wait for one watcher, besides the one that is being sent."""
DROPPED: Final = "watch client channel closed"

Event = tuple[int, bytes]
"""The type of an event, and the pod in Kubernetes' protobuf form."""


class PodWatchers:
    """Pass on the changes of pods; `pods` returns all that the node has. Belongs to one event loop."""

    def __init__(self, pods: Callable[[], Sequence[Pod]], registry: Registry) -> None:
        self._pods = pods
        self._watchers: set[_Watcher] = set()
        self._dropped = registry.counter(
            "kubelet_pod_watch_events_dropped_total", "Cumulative number of pod watch events dropped."
        )
        self._dropped.inc(by=0)

    def pod_changed(self, pod: Pod) -> None:
        """Handle a pod's changed status, spec or metadata."""
        # An orphan of which nothing but its name is known has no containers, and is no pod of the API.
        if self._watchers and pod.spec.containers:
            self._pass_on(pod.uid, encode_pod(pod))

    def pod_gone(self, pod: Pod) -> None:
        """Handle a pod that the node no longer has."""
        if self._watchers:
            self._pass_on(pod.uid, encode_pod_document({"metadata": _name_of(pod.metadata)}), gone=True)

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Yield events until the caller stops. Raises `Refused` if there are too many watchers, or if this
        one reads too slowly.
        """
        if len(self._watchers) >= MOST_WATCHERS:
            raise Refused(f"there are {MOST_WATCHERS} watchers already")
        watcher = _Watcher(self._pods())
        self._watchers.add(watcher)
        try:
            async for event in watcher.events():
                yield event
        finally:
            self._watchers.discard(watcher)

    def __len__(self) -> int:
        return len(self._watchers)

    def _pass_on(self, uid: str, data: bytes, *, gone: bool = False) -> None:
        slow = [each for each in self._watchers if not each.add(uid, data, gone=gone)]
        for watcher in slow:
            self._watchers.discard(watcher)
            self._dropped.inc()


class _Watcher:
    """Hold what one watcher has not been sent yet."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._first = {pod.uid: pod for pod in sorted(pods, key=lambda pod: pod.uid)}
        self._sent: set[str] = set()
        self._waiting: deque[Event] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._cut = False

    def add(self, uid: str, data: bytes, *, gone: bool) -> bool:
        """Add an event; return False, and drop all of them, if the watcher is too slow."""
        # The initial event of a pod shows the pod as it is when it is sent: an earlier state must not follow.
        if uid in self._first:
            if gone:
                del self._first[uid]
            return True
        if gone and uid not in self._sent:
            return True
        kind = DELETED if gone else MODIFIED if uid in self._sent else ADDED
        if gone:
            self._sent.discard(uid)
        else:
            self._sent.add(uid)
        self._waiting.append((kind, data))
        self._size += len(data)
        self._cut = len(self._waiting) > MOST_EVENTS or self._size > MOST_BYTES
        if self._cut:
            self._waiting.clear()
            self._first.clear()
        self._news.set()
        return not self._cut

    async def events(self) -> AsyncGenerator[Event, None]:
        while self._first:
            uid = next(iter(self._first))
            pod = self._first.pop(uid)
            self._sent.add(uid)
            yield ADDED, encode_pod(pod)
            await asyncio.sleep(0)  # encoding some hundred pods in one turn would hold up the node
        if not self._cut:
            yield INITIAL_SYNC_COMPLETE, b""
        while True:
            while self._waiting:
                kind, data = self._waiting.popleft()
                self._size -= len(data)
                yield kind, data
            if self._cut:
                raise Refused(DROPPED)
            self._news.clear()
            await self._news.wait()


def _name_of(metadata: ObjectMeta) -> dict[str, str]:
    return {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
