"""Follows all objects of one kind with one watch, while pods of this node need them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from engine.api.errors import Unavailable
from engine.cluster.client import ApiClient
from engine.cluster.object_watches import FIRST_READ_SECONDS
from engine.cluster.watching import Named, ResourceWatch, WatchedResource, WatchHandler
from engine.host.tasks import TransientTasks

T = TypeVar("T", bound=Named)


class SharedWatch(Generic[T]):
    """Follow all objects of a kind; `find` determines the resource on first use.

    `changed(pod uid)` is called when an object changes, appears or vanishes. Belongs to one event loop.
    """

    def __init__(
        self,
        client: ApiClient,
        watching: TransientTasks,
        find: Callable[[], Awaitable[WatchedResource[T]]],
        changed: Callable[[str], None],
    ) -> None:
        self._client = client
        self._watching = watching
        self._find = find
        self._changed = changed
        self._pods: set[str] = set()
        self._known: dict[str, T] = {}
        self._watch: ResourceWatch[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._finding = asyncio.Lock()

    def refer(self, uid: str, *, needs: bool) -> None:
        """Set whether a pod needs the objects."""
        if needs:
            self._pods.add(uid)
            return
        self._pods.discard(uid)
        if not self._pods:
            if self._task is not None:
                self._task.cancel()
            self._watch = self._task = None
            self._known.clear()

    async def all(self) -> Mapping[str, T]:
        """Return the objects by name; waits briefly for the first read.

        Raises `Unavailable` if they are not known yet, and the errors of `find`.
        """
        if not self._pods:
            raise Unavailable("no pod needs them any longer")
        # Several pods may call this at once; the first caller finds the resource for all.
        async with self._finding:
            watch = self._watch or self._follow(await self._find())
        try:
            async with asyncio.timeout(FIRST_READ_SECONDS):
                await watch.synced.wait()
        except TimeoutError:
            raise Unavailable(f"{watch.resource.path} has not been read yet") from None
        return self._known

    def _follow(self, resource: WatchedResource[T]) -> ResourceWatch[T]:
        handler: WatchHandler[T] = WatchHandler(self._on_replaced, self._on_changed, self._on_deleted)
        watch = self._watch = ResourceWatch(self._client, resource, handler)
        self._task = self._watching.start_retrying(watch.run, resource.path)
        return watch

    def _on_replaced(self, objects: Sequence[T]) -> None:
        self._known = {known.metadata.name: known for known in objects}
        self._notify_pods()

    def _on_changed(self, known: T) -> None:
        self._known[known.metadata.name] = known
        self._notify_pods()

    def _on_deleted(self, known: T) -> None:
        self._known.pop(known.metadata.name, None)
        self._notify_pods()

    def _notify_pods(self) -> None:
        # Iterate over a copy, because `changed` may call `refer`.
        for uid in list(self._pods):
            self._changed(uid)
