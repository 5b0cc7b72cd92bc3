"""Serve watches: the initial set on request, changes, bookmarks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from engine.testing.apiserver.paths import ResourcePath
from engine.testing.apiserver.selectors import Selector
from engine.testing.apiserver.store import Change, Object, ObjectStore, StoreError

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
Event = dict[str, Any]


async def events(
    store: ObjectStore,
    path: ResourcePath,
    selected: Selector,
    kind: tuple[str, str],
    params: Mapping[str, str],
    bookmark_seconds: float,
) -> AsyncIterator[Event]:
    """Yield events until the end of `timeoutSeconds`. Raise StoreError (410) if a change is forgotten.

    `kind` is apiVersion and kind of a bookmark's object.
    """
    asked = params.get("resourceVersion", "")
    streaming = params.get("sendInitialEvents") == "true"
    version = store.version if streaming or asked in ("", "0") else int(asked)
    if streaming or (asked in ("", "0") and params.get("sendInitialEvents") != "false"):
        for known in store.list(path):
            if selected(known):
                yield {"type": "ADDED", "object": known}
    if streaming:
        yield _bookmark(kind, version, {INITIAL_EVENTS_END: "true"})
    marks = params.get("allowWatchBookmarks") in ("true", "1")
    loop = asyncio.get_running_loop()
    end = loop.time() + float(params.get("timeoutSeconds", 1800))
    mark_at = loop.time() + bookmark_seconds if marks else float("inf")
    while loop.time() < end:
        change = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(end, mark_at)):
                change = await store.after(version)
        if change is None:
            if loop.time() >= mark_at:
                mark_at = loop.time() + bookmark_seconds
                yield _bookmark(kind, version, None)
            continue
        version = change.version
        event = _event(change, path, selected)
        if event is not None:
            yield event


def too_new(version: int, store: ObjectStore) -> StoreError | None:
    if version <= store.version:
        return None
    return StoreError(504, "Timeout", f"Too large resource version: {version}, current: {store.version}")


def _event(change: Change, path: ResourcePath, selected: Selector) -> Event | None:
    """Return a change as one watch sees it: an object may enter its selection and leave it."""
    if change.collection != path.collection:
        return None
    before, after = _seen(change.before, path, selected), _seen(change.after, path, selected)
    if after is not None:
        return {"type": "ADDED" if before is None else "MODIFIED", "object": after}
    if before is None:
        return None
    if change.after is not None:
        version = change.after["metadata"]["resourceVersion"]
        before = {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
    return {"type": "DELETED", "object": before}


def _seen(value: Object | None, path: ResourcePath, selected: Selector) -> Object | None:
    if value is None or path.namespace not in ("", value["metadata"].get("namespace", "")):
        return None
    return value if selected(value) else None


def _bookmark(kind: tuple[str, str], version: int, annotations: dict[str, str] | None) -> Event:
    metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"type": "BOOKMARK", "object": {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata}}
