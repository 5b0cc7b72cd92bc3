"""Follows the objects that pods of this node refer to, while a pod refers to them.

A node may read a secret or a ConfigMap only by name, and only while a pod bound to it refers to it. Each
object therefore has its own watch on the shared connection; immutable objects have none. Source: kubelet
v1.36 (`pkg/kubelet/util/manager`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

import msgspec

from engine.api.errors import NotFound, Unavailable
from engine.api.meta import ObjectMeta
from engine.api.objects.cluster_objects import ConfigMap, Secret
from engine.cluster.client import ApiClient
from engine.cluster.names import field_is
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.host.tasks import Tasks

FIRST_READ_SECONDS: Final = 1.0
LEAST_WATCH_SECONDS: Final = 1800

Kind = type[Secret] | type[ConfigMap]
T = TypeVar("T", Secret, ConfigMap)

_RESOURCES: dict[Kind, str] = {Secret: "secrets", ConfigMap: "configmaps"}
_WORDS: dict[Kind, str] = {Secret: "secret", ConfigMap: "configmap"}


class Reference(msgspec.Struct, frozen=True):
    """Name one object."""

    kind: Kind
    namespace: str
    name: str


class ReferredObjects:
    """Follow objects; `changed(pod uid)` is called when an object that the pod refers to changes, appears or
    vanishes.

    Belongs to one event loop.
    """

    def __init__(self, client: ApiClient, tasks: Tasks, changed: Callable[[str], None]) -> None:
        self._client = client
        self._changed = changed
        self._watching = tasks.passing("cluster-object")
        self._followed: dict[Reference, _Followed] = {}
        self._of_pods: dict[str, frozenset[Reference]] = {}

    def refer(self, uid: str, references: Iterable[Reference]) -> None:
        """Set all objects that a pod refers to."""
        before, now = self._of_pods.get(uid, frozenset()), frozenset(references)
        if now:
            self._of_pods[uid] = now
        else:
            self._of_pods.pop(uid, None)
        for reference in now - before:
            self._follow(reference).pods.add(uid)
        for reference in before - now:
            followed = self._followed[reference]
            followed.pods.discard(uid)
            if not followed.pods:
                followed.stop()
                del self._followed[reference]

    async def get(self, kind: type[T], namespace: str, name: str) -> T:
        """Return the object as known now; waits briefly for the first read.

        Raises `NotFound` if there is none, and `Unavailable` if it is not known yet.
        """
        words = _WORDS[kind]
        followed = self._followed.get(Reference(kind, namespace, name))
        if followed is None:
            raise Unavailable(f'object "{namespace}"/"{name}" not registered')
        try:
            async with asyncio.timeout(FIRST_READ_SECONDS):
                await followed.watch.synced.wait()
        except TimeoutError:
            text = f"failed to sync {words} cache: timed out waiting for the condition"
            raise Unavailable(text) from None
        if followed.current is None:
            raise NotFound(f'{words} "{name}" not found')
        return cast("T", followed.current)

    @property
    def followed(self) -> int:
        """Return the number of watched objects."""
        return sum(not followed.task.done() for followed in self._followed.values())

    async def stop(self) -> None:
        self._followed.clear()
        self._of_pods.clear()
        await self._watching.stop()

    def _follow(self, reference: Reference) -> _Followed:
        followed = self._followed.get(reference)
        if followed is None:
            followed = self._followed[reference] = _Followed(reference, self._client, self._changed)
            name = f"{_WORDS[reference.kind]} {reference.namespace}/{reference.name}"
            followed.task = self._watching.start_retrying(followed.watch.run, name)
        return followed


class _Followed:
    """Hold one object and the pods that refer to it. Of the metadata, only name, namespace and uid stay."""

    __slots__ = ("_changed", "current", "pods", "task", "watch")

    task: asyncio.Task[None]

    def __init__(self, reference: Reference, client: ApiClient, changed: Callable[[str], None]) -> None:
        self.pods: set[str] = set()
        self.current: Secret | ConfigMap | None = None
        self._changed = changed
        resource = _RESOURCES[reference.kind]
        self.watch = ResourceWatch(
            client,
            WatchedResource(
                f"/api/v1/namespaces/{reference.namespace}/{resource}",
                reference.kind,
                field_is("metadata.name", reference.name),
            ),
            WatchHandler(self._on_replaced, self._on_changed, self._on_deleted),
            least_seconds=LEAST_WATCH_SECONDS,
        )

    def stop(self) -> None:
        self.task.cancel()

    def _on_replaced(self, objects: Sequence[Secret | ConfigMap]) -> None:
        self._update(objects[0] if objects else None)

    def _on_changed(self, known: Secret | ConfigMap) -> None:
        self._update(known)

    def _on_deleted(self, _: Secret | ConfigMap) -> None:
        self._update(None)

    def _update(self, known: Secret | ConfigMap | None) -> None:
        if known is not None:
            meta = known.metadata
            # Drop resource version and managed fields: an update of only these does not affect pods.
            known.metadata = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid)
        if known != self.current:
            self.current = known
            # Iterate over a copy, because `changed` may call `refer`.
            for uid in list(self.pods):
                self._changed(uid)
        if known is not None and known.immutable:
            # Stopped after this callback, because the watch sets `synced` when the callback returns, and
            # `get` waits for it.
            asyncio.get_running_loop().call_soon(self.stop)
