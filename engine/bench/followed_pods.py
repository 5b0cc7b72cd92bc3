"""Follow the pods of an API server, as an observer of the cluster sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from engine.api.errors import Unavailable
from engine.api.meta import ObjectMeta
from engine.cluster import watching
from engine.cluster.client import ApiClient


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None

    @property
    def ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.conditions or ())


class SeenObject(msgspec.Struct):
    """Decode the observed fields of a node or a pod."""

    metadata: ObjectMeta
    status: _Status = msgspec.field(default_factory=_Status)


@dataclass(slots=True)
class FollowedPods:
    """Track when each pod was first reported and first Ready (monotonic seconds), and which pods exist.

    `key` names a pod; a pod without a name is not followed.
    """

    key: Callable[[ObjectMeta], str]
    clock: Callable[[], float] = time.monotonic
    created: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    changes: asyncio.Event = field(default_factory=asyncio.Event)

    def replaced(self, pods: Iterable[SeenObject]) -> None:
        self.present.clear()
        for pod in pods:
            self.changed(pod)

    def changed(self, pod: SeenObject) -> None:
        name, now = self.key(pod.metadata), self.clock()
        if not name:
            return
        self.present.add(name)
        self.created.setdefault(name, now)
        if pod.status.ready:
            self.ready.setdefault(name, now)
        self.changes.set()

    def deleted(self, pod: SeenObject) -> None:
        self.present.discard(self.key(pod.metadata))
        self.changes.set()

    async def until(
        self, condition: Callable[[], bool], limit: float, otherwise: Callable[[], str], subject: str
    ) -> None:
        """Return when the condition holds. Raise `Unavailable` about `subject` after `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                while not condition():
                    self.changes.clear()
                    await self.changes.wait()
        except TimeoutError:
            raise Unavailable(otherwise(), subject=subject) from None


@asynccontextmanager
async def followed(
    client: ApiClient, path: str, key: Callable[[ObjectMeta], str]
) -> AsyncIterator[FollowedPods]:
    """Follow the pods of a path while the block runs; it begins when the present ones are known."""
    pods = FollowedPods(key)
    handler = watching.WatchHandler(pods.replaced, pods.changed, pods.deleted)
    watch = watching.ResourceWatch(client, watching.WatchedResource(path, SeenObject), handler)
    following = asyncio.create_task(watch.run())
    try:
        await watch.synced.wait()
        yield pods
    finally:
        following.cancel()
