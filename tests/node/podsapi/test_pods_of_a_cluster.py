"""Pods of an API server as watchers of the pods API see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.node.podsapi.watchers import ADDED, DELETED, INITIAL_SYNC_COMPLETE, MODIFIED, PodWatchers
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import PODS, Cluster, Joined
from tests.waiting import eventually

pytestmark = pytest.mark.root


async def test_a_change_of_a_pod_that_ends_is_an_event_and_none_follows_its_end(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
) -> None:
    joined.config.feature_gates = {"PodsAPI": True}
    ended = asyncio.Event()
    stop = hollow.backend.stop_container

    async def stop_later(stopped: Any, grace: float) -> None:
        await ended.wait()
        await stop(stopped, grace)

    hollow.backend.stop_container = stop_later  # type: ignore[method-assign]
    node = await joined.start()
    server = node.running._pods_api
    assert server is not None
    events: list[tuple[int, bytes]] = []
    reading = asyncio.create_task(_read(server.watchers, events))
    await eventually(lambda: events)
    await cluster.run("p")
    await cluster.ready("p")
    await cluster.delete("p", grace=30)
    await eventually(lambda: any(pod.metadata.deletion_timestamp for pod in node.pods()))
    await cluster.client.patch(
        f"{PODS}/p", {"metadata": {"labels": {"state": "changed-late"}}}, dict[str, Any]
    )
    await eventually(lambda: b"changed-late" in events[-1][1])
    assert events[-1][0] == MODIFIED
    ended.set()
    await cluster.gone("p")
    await eventually(lambda: events[-1][0] == DELETED)
    kinds = [kind for kind, _ in events]
    assert kinds == [INITIAL_SYNC_COMPLETE, ADDED, *[MODIFIED] * (len(kinds) - 3), DELETED]
    await asyncio.sleep(0.3)
    assert len(events) == len(kinds)
    reading.cancel()


async def _read(watchers: PodWatchers, events: list[tuple[int, bytes]]) -> None:
    async for event in watchers.watch():
        events.append(event)
