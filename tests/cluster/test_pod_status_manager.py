"""Telling a test API server how pods are: what is sent, in which order, and what is done about refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from engine.api.duration import RetryDelays
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.api.struct import decode_hook, to_builtins
from engine.cluster import pod_status_manager as pod_writer
from engine.cluster.client import ApiClient
from engine.cluster.pod_status_manager import PodStatusManager
from engine.testing.apiserver import ApiServer, ApiServerFault
from tests.waiting import PATIENCE, eventually

PODS = "/api/v1/namespaces/default/pods"
Object = dict[str, Any]


def status(phase: str = "Running", ready: str = "False", **more: Any) -> PodStatus:
    value = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}], **more}
    return msgspec.convert(value, PodStatus, dec_hook=decode_hook)


class World:
    """Hold a status manager and the server that it writes to."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        self.server = server
        self.writer = PodStatusManager(client, clock=time.time)

    def make(self, name: str) -> Pod:
        value = {"metadata": {"name": name}, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}
        self.server.create(f"{PODS}/{name}", value)
        return self.on_server(name)

    def on_server(self, name: str) -> Pod:
        return msgspec.convert(self.server.get(f"{PODS}/{name}"), Pod, dec_hook=decode_hook)

    def phase(self, name: str) -> str:
        phase: str = self.server.get(f"{PODS}/{name}")["status"].get("phase", "")
        return phase

    def add(self, *names: str) -> list[str]:
        pods = [self.make(name) for name in names]
        for pod in pods:
            self.writer.update(pod)
        return [pod.uid for pod in pods]

    def sent(self, method: str = "PATCH") -> list[str]:
        return [r.path.split("/")[6] for r in self.server.requests if r.method == method and PODS in r.path]


@pytest.fixture
async def world(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(pod_writer, "RETRIES", RetryDelays(0.01, 10.0))
    world = World(server, client)
    yield world
    await world.writer.stop()


async def test_a_status_that_the_server_has_is_not_sent_again(world: World):
    (uid,) = world.add("a")
    world.writer.report(uid, status(), may_run=True)
    await eventually(lambda: world.phase("a") == "Running")
    world.writer.update(world.on_server("a"))
    world.writer.report(uid, status(), may_run=True)
    world.writer.report("of nobody", status(), may_run=True)
    await world.writer.wait_reported(uid)
    assert world.sent() == ["a"]


async def test_an_overwritten_status_is_sent_again(world: World):
    (uid,) = world.add("a")
    world.writer.report(uid, status(), may_run=True)
    await world.writer.wait_reported(uid)
    await world.writer._client.patch(f"{PODS}/a/status", {"status": {"phase": "Unknown"}}, Object)
    world.writer.update(world.on_server("a"))
    await eventually(lambda: world.phase("a") == "Running")


async def test_news_older_than_an_answer_changes_nothing_but_a_list_does(world: World):
    (uid,) = world.add("a")
    before = world.on_server("a")
    world.writer.report(uid, status(), may_run=True)
    await eventually(lambda: world.phase("a") == "Running")
    world.writer.update(before)
    await world.writer.wait_reported(uid)
    assert world.sent() == ["a"]
    world.writer.update(before, listed=True)
    await eventually(lambda: world.sent() == ["a", "a"])


async def test_pods_that_become_ready_come_first(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pod_writer, "AT_ONCE", 1)
    names = [f"p{number}" for number in range(6)]
    uids = world.add(*names)
    for uid in uids[:5]:
        world.writer.report(uid, status(), may_run=True)
    world.writer.report(uids[5], status(ready="True"), may_run=True)
    await asyncio.gather(*map(world.writer.wait_reported, uids))
    assert world.sent() == ["p0", "p5", "p1", "p2", "p3", "p4"]


async def test_details_come_last(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pod_writer, "AT_ONCE", 1)
    monkeypatch.setattr(pod_writer, "DETAILS_AT_ONCE", 1)
    monkeypatch.setattr(pod_writer, "DETAIL_DELAY_SECONDS", 0.0)
    names = [f"p{number}" for number in range(5)]
    uids = world.add(*names)
    for uid in uids[:3]:
        world.writer.report(uid, status("Pending", reason="Waiting"), may_run=True)
    world.writer.report(uids[3], status(), may_run=True)
    world.writer.report(uids[4], status(ready="True"), may_run=True)
    await eventually(lambda: len(world.sent()) == 5)
    assert world.sent() == ["p0", "p4", "p3", "p1", "p2"]


async def test_a_pod_that_starts_at_once_sends_one_status(world: World):
    (uid,) = world.add("a")
    for reason in ("", "Preparing", "Starting"):
        world.writer.report(uid, status("Pending", reason=reason), may_run=True)
    world.writer.report(uid, status(ready="True"), may_run=True)
    await world.writer.wait_reported(uid)
    assert (world.phase("a"), world.sent()) == ("Running", ["a"])


async def test_a_last_detail_is_sent_too(world: World):
    (uid,) = world.add("a")
    world.writer.report(uid, status("Pending", reason="Waiting"), may_run=True)
    await eventually(lambda: world.server.get(f"{PODS}/a")["status"].get("reason") == "Waiting")


async def test_an_awaited_detail_is_sent_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pod_writer, "DETAIL_DELAY_SECONDS", float("inf"))
    (uid,) = world.add("a")
    world.writer.report(uid, status("Pending", reason="Waiting"), may_run=True)
    await world.writer.wait_reported(uid)
    assert world.server.get(f"{PODS}/a")["status"]["reason"] == "Waiting"


@pytest.mark.parametrize("fault", [500, 409, 429, ApiServerFault.DROP])
async def test_a_refused_status_is_sent_until_it_is_accepted(world: World, fault: ApiServerFault | int):
    world.server.fail(fault, path="/status", times=3, retry_after=0)
    (uid,) = world.add("a")
    world.writer.report(uid, status(), may_run=True)
    await eventually(lambda: world.phase("a") == "Running")


async def test_a_report_that_fails_unexpectedly_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    patch, failures = world.writer._client.patch, [RuntimeError("a bug"), RuntimeError("a bug")]

    async def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await patch(*args)

    monkeypatch.setattr(world.writer._client, "patch", failing)
    (uid,) = world.add("a")
    world.writer.report(uid, status(), may_run=True)
    await eventually(lambda: world.phase("a") == "Running")
    assert [r.message for r in caplog.records if r.exc_info] == ["pod a: cannot report its status"]


async def test_pods_of_the_same_name_share_no_state(world: World):
    (uid,) = world.add("a")
    world.server.delete(f"{PODS}/a", grace=0)
    other = to_builtins(world.make("a"))
    world.writer.report(uid, status("Failed"), may_run=False)
    world.writer.removed(uid)
    await eventually(lambda: len(world.sent()) > 1)
    world.writer.forget(uid)
    await world.writer.wait_reported(uid)
    assert to_builtins(world.on_server("a")) == other


async def test_a_deleted_pod_is_removed_once_its_end_is_known_and_nothing_remains(world: World):
    (uid,) = world.add("a")
    world.server.delete(f"{PODS}/a", grace=30)
    world.writer.update(world.on_server("a"))
    world.writer.report(uid, status("Succeeded"), may_run=False)
    await world.writer.wait_reported(uid)
    assert (world.phase("a"), world.sent("DELETE")) == ("Succeeded", [])
    world.writer.removed(uid)
    await eventually(lambda: world.server.list(PODS) == [])
    assert world.writer.is_removed(uid)


async def test_a_pod_that_was_not_deleted_stays(world: World):
    (uid,) = world.add("a")
    world.writer.report(uid, status("Failed"), may_run=False)
    world.writer.removed(uid)
    await world.writer.wait_reported(uid)
    assert (world.phase("a"), world.sent("DELETE")) == ("Failed", [])


async def test_every_waiter_for_a_status_is_notified(world: World):
    world.server.fail(500, path="/status", times=1)
    (uid,) = world.add("a")
    world.writer.report(uid, status("Failed"), may_run=False)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(world.writer.wait_reported(uid) for _ in range(3)))
    assert world.phase("a") == "Failed"


async def test_a_pod_that_a_restored_server_has_again_is_deleted_again(world: World):
    (uid,) = world.add("a")
    world.server.delete(f"{PODS}/a", grace=30)
    world.writer.update(world.on_server("a"))
    snapshot = world.server.objects.snapshot()
    world.writer.report(uid, status("Succeeded"), may_run=False)
    world.writer.removed(uid)
    await eventually(lambda: world.server.list(PODS) == [])
    await eventually(lambda: not world.writer._tasks)
    world.server.objects.set_back(snapshot)
    world.writer.update(world.on_server("a"), listed=True)
    await eventually(lambda: world.server.list(PODS) == [])


async def test_the_last_status_of_a_removed_pod_is_final(world: World):
    """Objects of a removed pod may appear again in the runtime; its deletion must not depend on them."""
    (uid,) = world.add("a")
    world.server.delete(f"{PODS}/a", grace=30)
    world.writer.update(world.on_server("a"))
    world.server.fail(500, path="/status", times=1)
    world.writer.report(uid, status("Succeeded"), may_run=False)
    world.writer.removed(uid)
    world.writer.report(uid, status("Running"), may_run=True)
    await eventually(lambda: world.server.list(PODS) == [])
