"""The pods API on its socket: the node's pods, their changes in order, and the limits of those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.devices.pod_resources import BURST, QUERIES_PER_SECOND, RateLimit
from engine.node.podsapi import watchers
from engine.wire import pods_v1alpha1_pb2 as wire
from engine.wire.pods_v1alpha1_pb2_grpc import PodsStub
from tests.node_rig import Rig, container
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

OWN = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
NAMES = {1: "ADDED", 2: "MODIFIED", 3: "DELETED", 4: "INITIAL_SYNC_COMPLETE"}


@pytest.fixture
async def node(rig: Rig) -> Rig:
    rig.config.feature_gates = {"PodsAPI": True}
    await rig.start()
    return rig


@pytest.fixture
async def channel(node: Rig) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{socket(node)}", options=OWN) as channel:
        yield channel


@pytest.fixture
def pods(channel: grpc.aio.Channel) -> Any:
    return PodsStub(channel)


def socket(rig: Rig) -> Path:
    return rig.root / "pods-api/pods-api.sock"


def is_of(name: str, data: bytes) -> bool:
    return f"{name}-n1".encode() in data


def has_more(events: list[Any], than: int) -> bool:
    return len(events) > than


async def read_all(call: Any) -> None:
    async for _ in call:
        pass


async def code_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


class Watch:
    """Read a watch in the background."""

    def __init__(self, stub: Any) -> None:
        self.events: list[tuple[str, bytes]] = []
        self.call = stub.WatchPods(wire.WatchPodsRequest())
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> str:
        try:
            async for event in self.call:
                self.events.append((NAMES[event.type], event.pod))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "ended"

    def kinds(self, name: str) -> list[str]:
        return [kind for kind, data in self.events if is_of(name, data)]

    async def synced(self) -> None:
        await eventually(lambda: ("INITIAL_SYNC_COMPLETE", b"") in self.events)

    async def stop(self) -> None:
        self.call.cancel()
        await asyncio.wait([self.reading])


async def test_without_its_gate_there_is_no_api(rig: Rig) -> None:
    await rig.start()
    assert not socket(rig).parent.exists()


async def test_pods_are_listed_and_found_by_their_uid(node: Rig, pods: Any) -> None:
    assert list((await pods.ListPods(wire.ListPodsRequest())).pods) == []
    for name in ("a", "b"):
        node.write(name, {"containers": [container()]})
    await eventually(lambda: node.phase("a") == node.phase("b") == "Running")
    listed = (await pods.ListPods(wire.ListPodsRequest())).pods
    found = [pod for name in ("a", "b") if (pod := node.pod(name)) is not None]
    assert len(listed) == len(found) == 2
    by_uid = sorted(found, key=lambda pod: pod.uid)
    assert [pod.uid.encode() in data for pod, data in zip(by_uid, listed, strict=True)] == [True, True]
    answer = await pods.GetPod(wire.GetPodRequest(podUID=by_uid[0].uid))
    assert answer.pod == listed[0]
    assert b"Running" in answer.pod


@pytest.mark.parametrize("uid", ["", "no-such-uid", "../../etc", "x" * 100_000, "\0"])
async def test_an_unknown_uid_is_not_found(node: Rig, pods: Any, uid: str) -> None:
    code, details = await code_of(pods.GetPod(wire.GetPodRequest(podUID=uid)))
    assert (code, details.startswith("pod with UID")) == ("NOT_FOUND", True)


async def test_bytes_that_are_no_request_are_refused(node: Rig, channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/v1alpha1.Pods/GetPod", bytes, bytes)
    code, _ = await code_of(call(b"\x0a\x02\xff\xfe", timeout=PATIENCE))
    assert code in ("INTERNAL", "UNKNOWN")


async def test_a_watch_gets_what_is_there_and_then_each_change_in_order(node: Rig, pods: Any) -> None:
    node.write("before", {"containers": [container()]})
    await eventually(lambda: node.phase("before") == "Running")
    watch = Watch(pods)
    await watch.synced()
    assert [kind for kind, _ in watch.events] == ["ADDED", "INITIAL_SYNC_COMPLETE"]
    node.write("p", {"containers": [container()]})
    await eventually(lambda: node.phase("p") == "Running")
    path = node.write("p2", {"containers": [container()]})
    await eventually(lambda: node.phase("p2") == "Running")
    path.unlink()
    await eventually(lambda: "DELETED" in watch.kinds("p2"))
    kinds = watch.kinds("p2")
    assert kinds == ["ADDED", *["MODIFIED"] * (len(kinds) - 2), "DELETED"]
    assert watch.kinds("p")[0] == "ADDED"
    assert "DELETED" not in watch.kinds("p")
    last = [data for kind, data in watch.events if is_of("p", data)][-1]
    assert b"Running" in last
    await watch.stop()


async def test_every_watcher_gets_every_change_until_it_goes(node: Rig, pods: Any) -> None:
    watches = [Watch(pods) for _ in range(50)]
    for watch in watches:
        await watch.synced()
    server = running(node)
    assert len(server.watchers) == 50
    for watch in watches[:25]:
        await watch.stop()
    await eventually(lambda: len(server.watchers) == 25)
    path = node.write("p", {"containers": [container()]})
    await eventually(lambda: all("MODIFIED" in watch.kinds("p") for watch in watches[25:]))
    path.unlink()
    await eventually(lambda: all(watch.kinds("p")[-1] == "DELETED" for watch in watches[25:]))
    assert {tuple(watch.events) for watch in watches[25:]} == {tuple(watches[25].events)}
    for watch in watches[25:]:
        await watch.stop()
    await eventually(lambda: len(server.watchers) == 0)


async def test_there_is_a_limit_of_watchers(node: Rig, pods: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MOST_WATCHERS", 2)
    first, second = Watch(pods), Watch(pods)
    for watch in (first, second):
        await watch.synced()
    third = Watch(pods)
    assert await third.reading == "RESOURCE_EXHAUSTED: there are 2 watchers already"
    await first.stop()
    await eventually(lambda: len(running(node).watchers) == 1)
    fourth = Watch(pods)
    await fourth.synced()
    for watch in (second, fourth):
        await watch.stop()


async def test_a_watcher_that_does_not_read_is_cut_off(
    node: Rig, channel: grpc.aio.Channel, pods: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "MOST_BYTES", 1 << 20)
    slow = pods.WatchPods(wire.WatchPodsRequest())
    first = await anext(aiter(slow))
    assert first.type == wire.INITIAL_SYNC_COMPLETE
    reading = Watch(pods)
    await reading.synced()
    node.write("p", {"containers": [container()]}, annotations={"long": "x" * 200_000})
    await eventually(lambda: node.phase("p") == "Running")
    server = running(node)
    pod = node.pod("p")
    assert pod is not None
    while len(server.watchers) == 2:
        before = len(reading.events)
        server.watchers.pod_changed(pod)
        await eventually(partial(has_more, reading.events, before))
    assert not reading.reading.done()
    with pytest.raises(grpc.aio.AioRpcError, match="watch client channel closed"):
        await read_all(slow)
    (dropped,) = [m for n, m in node_registry(node).items() if n == "kubelet_pod_watch_events_dropped_total"]
    assert dropped.values == {(): 1}
    await reading.stop()


async def test_calls_have_the_kubelets_rate(node: Rig, pods: Any) -> None:
    server = running(node)
    assert (QUERIES_PER_SECOND, BURST) == (100, 10)
    server._limit = RateLimit(QUERIES_PER_SECOND, BURST, lambda: 0.0)
    calls = [pods.ListPods(wire.ListPodsRequest()) for _ in range(15)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in results if isinstance(each, grpc.aio.AioRpcError)]
    assert [(each.code().name, each.details()) for each in refused] == [
        ("RESOURCE_EXHAUSTED", "rejected by rate limit")
    ] * 5


async def test_a_stop_ends_the_watches_and_removes_the_socket(node: Rig, pods: Any) -> None:
    watch = Watch(pods)
    await watch.synced()
    server = running(node)
    await node.stop()
    assert (await watch.reading).startswith(("CANCELLED", "UNAVAILABLE"))
    assert len(server.watchers) == 0
    assert not socket(node).exists()
    await node.start()
    async with grpc.aio.insecure_channel(f"unix:{socket(node)}", options=OWN) as again:
        await PodsStub(again).ListPods(wire.ListPodsRequest())


def running(rig: Rig) -> Any:
    assert rig.node is not None
    return rig.node.running._pods_api


def node_registry(rig: Rig) -> Any:
    assert rig.node is not None
    return rig.node.registry.metrics
