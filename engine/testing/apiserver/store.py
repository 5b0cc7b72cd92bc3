"""Store the objects, their versions, and the changes that watches follow."""

from __future__ import annotations

import asyncio
import copy
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.api.timestamps import rfc3339
from engine.testing.apiserver.paths import ResourcePath

HISTORY = 20_000

Object = dict[str, Any]


class StoreError(Exception):
    """Report a refusal: HTTP status, Kubernetes' reason, message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Change:
    """Record the change of `version`; `before` is None for a new object, `after` None for a removed one."""

    version: int
    collection: str
    before: Object | None
    after: Object | None


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Hold all objects as they were at a version."""

    version: int
    objects: Mapping[tuple[str, str, str], Object]


EMPTY = StoreSnapshot(1, {})


class ObjectStore:
    """Store objects by collection, namespace and name. Callers must not change returned objects.

    `clock` is Unix seconds. Versions grow by one with each change; watches can follow the last `HISTORY`
    changes, older ones are Gone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._news = asyncio.Event()
        self.version = self.oldest = EMPTY.version
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._changes: list[Change] = []

    def get(self, path: ResourcePath) -> Object:
        try:
            return self._objects[path.key]
        except KeyError:
            raise StoreError(404, "NotFound", f'{path.resource} "{path.name}" not found') from None

    def list(self, path: ResourcePath) -> list[Object]:
        return [
            known
            for (collection, namespace, _), known in self._objects.items()
            if collection == path.collection and path.namespace in ("", namespace)
        ]

    def resources(self, group: str) -> Sequence[str]:
        """Return the resources of a group and version, such as `/apis/apps/v1`, that have an object."""
        collections = {collection for collection, _, _ in self._objects}
        return sorted(name for where, _, name in (c.rpartition("/") for c in collections) if where == group)

    def create(self, path: ResourcePath, value: Object) -> Object:
        made = copy.deepcopy(value)
        metadata = made.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        if not metadata.get("name"):
            raise StoreError(
                422, "Invalid", "metadata.name: Required value: name or generateName is required"
            )
        key = path.collection, path.namespace, metadata["name"]
        if key in self._objects:
            raise StoreError(409, "AlreadyExists", f'{path.resource} "{metadata["name"]}" already exists')
        if path.namespace:
            metadata["namespace"] = path.namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = self.time()
        for given in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            metadata.pop(given, None)
        return self._put(key, None, made)

    def replace(self, path: ResourcePath, value: Object) -> Object:
        """Replace the stored object with `value`; an equal value is no change.

        A uid or resourceVersion in `value` must match the stored object's.
        """
        before = self.get(path)
        after = copy.deepcopy(value)
        metadata, known = after.setdefault("metadata", {}), before["metadata"]
        self.demand(path, metadata.get("uid"), metadata.get("resourceVersion"))
        for kept in ("name", "namespace", "uid", "creationTimestamp", "resourceVersion"):
            if kept in known:
                metadata[kept] = known[kept]
        if after == before:
            return before
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            grace = metadata.get("deletionGracePeriodSeconds")
            if not grace:
                return self._put(path.key, before, None)
        return self._put(path.key, before, after)

    def remove(self, path: ResourcePath) -> Object:
        """Remove it immediately; return its last state."""
        return self._put(path.key, self.get(path), None)

    def demand(self, path: ResourcePath, uid: str | None, version: str | None) -> None:
        """Check preconditions: raise StoreError (409) if the object is a different one or has changed."""
        known = self.get(path)["metadata"]
        if uid and uid != known["uid"]:
            raise StoreError(
                409, "Conflict", f"Precondition failed: UID in precondition: {uid}, in object: {known['uid']}"
            )
        if version and version != known["resourceVersion"]:
            raise StoreError(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {path.resource} "{path.name}": '
                "the object has been modified; please apply your changes to the latest version and try again",
            )

    def compact(self) -> None:
        """Forget the history: watches that begin before now are Gone."""
        self._changes.clear()
        self.oldest = self.version

    def snapshot(self) -> StoreSnapshot:
        return StoreSnapshot(self.version, dict(self._objects))

    def set_back(self, snapshot: StoreSnapshot) -> None:
        """Undo everything after `snapshot`, and continue counting versions from there."""
        self.version = self.oldest = snapshot.version
        self._objects = dict(snapshot.objects)
        self._changes = []

    async def after(self, version: int) -> Change:
        """Return the change that follows `version`, waiting for it if necessary.

        Raise StoreError (410) if it is forgotten.
        """
        while True:
            if version < self.oldest:
                raise StoreError(410, "Expired", f"too old resource version: {version} ({self.oldest})")
            if version < self.version:
                return self._changes[version - self.oldest]
            await self._news.wait()

    def time(self, ahead: float = 0.0) -> str:
        return rfc3339(self._clock() + ahead)

    def _put(self, key: tuple[str, str, str], before: Object | None, after: Object | None) -> Object:
        self.version += 1
        version = str(self.version)
        if after is None:
            assert before is not None
            del self._objects[key]
            gone = {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
            self._log(Change(self.version, key[0], gone, None))
            return gone
        after["metadata"]["resourceVersion"] = version
        self._objects[key] = after
        self._log(Change(self.version, key[0], before, after))
        return after

    def _log(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > HISTORY:
            del self._changes[: HISTORY // 2]
            self.oldest += HISTORY // 2
        self._news.set()
        self._news = asyncio.Event()
