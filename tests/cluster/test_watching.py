"""Following a list through everything that may happen to a watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine.api.pod import Pod
from engine.cluster.client import ApiClient
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.testing.apiserver import ApiServer, ApiServerFault
from tests.waiting import PATIENCE

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, node: str = "n1") -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": name}, "spec": spec}


class Follower:
    """Keep the pods of n1 as a watch delivers them, and count its lists (`sets`) and pauses."""

    def __init__(self, client: ApiClient) -> None:
        self.pods: dict[str, Pod] = {}
        self.sets = 0
        self.pauses = 0
        handler = WatchHandler(self._replaced, self._changed, self._deleted)
        resource = WatchedResource("/api/v1/pods", Pod, "spec.nodeName=n1")
        self.watch = ResourceWatch(client, resource, handler, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses += 1
        await asyncio.sleep(0.01)

    def _replaced(self, pods: Any) -> None:
        self.sets += 1
        self.pods = {each.metadata.name: each for each in pods}

    def _changed(self, each: Pod) -> None:
        self.pods[each.metadata.name] = each

    def _deleted(self, each: Pod) -> None:
        del self.pods[each.metadata.name]

    async def until(self, *names: str) -> None:
        await until(lambda: self.pods.keys() == set(names))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 (whatever it is, it tells nobody)
            await asyncio.sleep(0.01)


@pytest.fixture
async def follower(client: ApiClient) -> AsyncIterator[Follower]:
    made = Follower(client)
    task = asyncio.create_task(made.watch.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(params=["streaming lists", "lists"])
def server_of_both_kinds(server: ApiServer, request: pytest.FixtureRequest) -> ApiServer:
    server.streaming_lists = request.param == "streaming lists"
    return server


async def test_the_initial_list_and_every_change_are_delivered(
    server_of_both_kinds: ApiServer, follower: Follower
):
    server = server_of_both_kinds
    server.create(PODS, pod("a"))
    server.create(PODS, pod("elsewhere", "n2"))
    await follower.watch.synced.wait()
    await follower.until("a")
    server.create(PODS, pod("b"))
    server.create(PODS, pod("elsewhere2", "n2"))
    await follower.until("a", "b")
    server.delete(f"{PODS}/a", grace=0)
    await follower.until("b")
    assert follower.sets == 1


async def test_news_that_a_listener_failed_at_is_delivered_again(
    server_of_both_kinds: ApiServer, client: ApiClient
):
    server_of_both_kinds.create(PODS, pod("a"))
    follower = Follower(client)
    kinds = ("replaced", "changed", "deleted")
    faults = {kind: OSError(5, f"not {kind}") for kind in kinds}

    def failing_once(kind: str) -> Callable[[Any], None]:
        deliver_to_handler = getattr(follower.watch.handler, kind)

        def deliver(update: Any) -> None:
            if kind in faults:
                raise faults.pop(kind)
            deliver_to_handler(update)

        return deliver

    follower.watch.handler = WatchHandler(*(failing_once(kind) for kind in kinds))

    async def again_and_again() -> None:
        while True:
            with contextlib.suppress(OSError):
                await follower.watch.run()

    task = asyncio.create_task(again_and_again())
    await follower.until("a")
    server_of_both_kinds.create(PODS, pod("b"))
    await follower.until("a", "b")
    server_of_both_kinds.delete(f"{PODS}/a", grace=0)
    await follower.until("b")
    assert (faults, follower.sets) == ({}, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_clean_end_continues_from_the_last_version(server: ApiServer, follower: Follower):
    await follower.watch.synced.wait()
    server.create(PODS, pod("a"))
    await follower.until("a")
    server.end_watches()
    await until(lambda: len(server.requests) == 2)
    server.create(PODS, pod("b"))
    await follower.until("a", "b")
    assert (follower.sets, follower.pauses) == (1, 0)


async def test_a_forgotten_version_lists_all_objects_again(
    server_of_both_kinds: ApiServer, follower: Follower
):
    server = server_of_both_kinds
    server.create(PODS, pod("a"))
    await follower.until("a")
    server.fail(ApiServerFault.HANG, times=None)
    server.disconnect()
    server.create(PODS, pod("b"))
    server.delete(f"{PODS}/a", grace=0)
    server.objects.compact()
    server.heal()
    server.disconnect()
    await follower.until("b")
    assert follower.sets == 2


@pytest.mark.parametrize(
    "fault", [ApiServerFault.DROP, ApiServerFault.RESET, ApiServerFault.MALFORMED, 500, 503, 401, 403]
)
async def test_trouble_is_lived_through(server: ApiServer, follower: Follower, fault: ApiServerFault | int):
    server.create(PODS, pod("a"))
    server.fail(fault, times=4)
    await follower.until("a")
    server.disconnect()
    server.create(PODS, pod("b"))
    await follower.until("a", "b")
    assert follower.sets == 1
    streams = ["sendInitialEvents" in seen.params for seen in server.requests]
    assert streams[0]
    assert sum(streams) > 1, "a refusal is followed by a LIST, and then a stream is asked for again"


@pytest.mark.parametrize("code", [410, 200])
async def test_a_server_that_always_refuses_or_ends_is_not_asked_without_pause(
    server: ApiServer, follower: Follower, code: int
):
    if code == 410:
        server.fail(410, times=None)
    else:
        await follower.watch.synced.wait()
        server.fail(ApiServerFault.HANG, times=None)
        server.disconnect()
        await until(lambda: len(server.requests) >= 2)
        server.heal()
        server.bookmark_seconds = 1000
        server.fail(None, times=None)
        for _ in range(20):
            server.end_watches()
            await asyncio.sleep(0.02)
    await until(lambda: follower.pauses > 3 or code == 200)
    asked = sum(seen.path == "/api/v1/pods" for seen in server.requests)
    assert asked <= 2 * (follower.pauses + 2)


async def test_changes_during_the_first_list_are_in_it(client: ApiClient, server: ApiServer):
    lines = [
        ("ADDED", pod("a")),
        ("ADDED", pod("b")),
        ("MODIFIED", pod("a", "n1")),
        ("DELETED", pod("b")),
    ]
    heard: list[list[str]] = []
    watch = ResourceWatch(
        client,
        WatchedResource("/api/v1/pods", Pod),
        WatchHandler(lambda pods: heard.append([p.metadata.name for p in pods]), print, print),
    )
    first: Any = {}
    for type_, value in lines:
        first = watch._first(first, watch._event(_line(type_, value)))
    mark = {"metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}}
    assert watch._first(first, watch._event(_line("BOOKMARK", mark))) is None
    assert heard == [["a"]]


async def test_an_object_that_makes_no_sense_hides_no_other(server: ApiServer, follower: Follower):
    server.create(PODS, {"metadata": {"name": "odd"}, "spec": {"nodeName": "n1", "containers": "none"}})
    server.create(PODS, pod("a"))
    await follower.until("a")
    server.create(PODS, {"metadata": {"name": "odder"}, "spec": {"nodeName": "n1", "containers": 7}})
    server.create(PODS, pod("b"))
    await follower.until("a", "b")
    assert follower.pauses == 0


async def test_bookmarks_move_the_version(server: ApiServer, client: ApiClient):
    server.bookmark_seconds = 0.02
    follower = Follower(client)
    task = asyncio.create_task(follower.watch.run())
    await follower.watch.synced.wait()
    server.create(PODS, pod("elsewhere", "n2"))
    await until(lambda: follower.watch._version == str(server.objects.version))
    server.objects.compact()
    server.end_watches()
    server.create(PODS, pod("a"))
    await follower.until("a")
    assert follower.sets == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_that_is_cancelled_lets_its_stream_go(server: ApiServer, client: ApiClient):
    follower = Follower(client)
    task = asyncio.create_task(follower.watch.run())
    await follower.watch.synced.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (connection,) = client._pool._connections
    assert connection.idle


def _line(type_: str, value: dict[str, Any]) -> bytes:
    import json

    return json.dumps({"type": type_, "object": value}).encode()


async def test_a_server_without_streaming_lists_is_listed(
    server: ApiServer, client: ApiClient, follower: Follower
):
    server.fail(500, path="^/api/v1/pods$")
    await client.create(PODS, pod("a"), Any)
    await follower.until("a")
    first, second = [seen.params for seen in server.requests if seen.path == "/api/v1/pods"][:2]
    assert "sendInitialEvents" in first
    assert "watch" not in second


async def test_a_restored_server_is_listed_again(
    server_of_both_kinds: ApiServer, client: ApiClient, follower: Follower
):
    server = server_of_both_kinds
    server.create(PODS, pod("a"))
    await follower.until("a")
    snapshot = server.objects.snapshot()
    for number in range(9):
        server.create(PODS, pod(f"later-{number}"))
    await until(lambda: len(follower.pods) == 10)
    await server.stop()
    server.objects.set_back(snapshot)
    await server.start()
    server.create(PODS, pod("b"))
    await until(lambda: len(server.open_watches) == 1)
    client.set_back()
    await follower.until("a", "b")
    before = follower.sets
    async with asyncio.timeout(PATIENCE):
        while follower.sets == before:
            server.end_watches()  # again, as the one that follows the list may not have begun
            await asyncio.sleep(0.05)
