"""Mirrors of static pods, made and taken away at a test API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from engine.api.duration import RetryDelays
from engine.api.pod import Pod
from engine.api.qos import HASH_ANNOTATION, MIRROR_ANNOTATION
from engine.api.struct import decode_hook
from engine.cluster import mirror_pods
from engine.cluster.client import ApiClient
from engine.cluster.mirror_pods import MirrorPods, mirror_of, represents
from engine.testing.apiserver import ApiServer
from tests.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"
Object = dict[str, Any]


def static(name: str = "web-n1", digest: str = "h1") -> Pod:
    value = {
        "metadata": {
            "name": name, "namespace": "default", "uid": digest, "labels": {"a": "b"},
            "annotations": {HASH_ANNOTATION: digest, "kubernetes.io/config.source": "file"},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    }  # fmt: skip
    return msgspec.convert(value, Pod, dec_hook=decode_hook)


def as_pod(value: Object) -> Pod:
    return msgspec.convert(value, Pod, dec_hook=decode_hook)


class World:
    """Hold the mirror pods of one node, which learns of the server's pods only when a test passes them on."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        self.server = server
        self.mirrors = MirrorPods(client, "n1", node_uid=lambda: "node-uid")

    def there(self) -> list[Pod]:
        return [as_pod(value) for value in self.server.list(PODS)]

    def only_mirror(self) -> Pod:
        (mirror,) = self.there()
        return mirror

    def hashes(self) -> list[str]:
        return [mirror.annotations[MIRROR_ANNOTATION] for mirror in self.there()]

    def requests(self, method: str) -> int:
        return sum(r.method == method and PODS in r.path for r in self.server.requests)


@pytest.fixture
async def world(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(mirror_pods, "RETRIES", RetryDelays(0.01, 30.0))
    world = World(server, client)
    yield world
    await world.mirrors.stop()


def test_a_mirror_is_the_static_pod_owned_by_its_node():
    mirror = mirror_of(static(), "n1", "node-uid")
    assert mirror["metadata"]["annotations"][MIRROR_ANNOTATION] == "h1"
    assert mirror["metadata"]["labels"] == {"a": "b"}
    assert "uid" not in mirror["metadata"]
    assert mirror["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": True}
    ]
    assert mirror["spec"]["nodeName"] == "n1"


def test_a_mirror_that_is_deleted_or_of_another_hash_shows_nothing():
    mirror = as_pod(mirror_of(static(), "n1", "node-uid"))
    assert represents(mirror, static())
    assert not represents(mirror, static(digest="h2"))
    mirror.metadata.deletion_timestamp = datetime.now(UTC)
    assert not represents(mirror, static())


@pytest.mark.parametrize("first", ["manifests", "server"])
async def test_nothing_is_done_before_manifests_and_server_are_known(world: World, first: str):
    def want() -> None:
        world.mirrors.set_static_pods({static().full_name: static()})

    def replaced() -> None:
        world.mirrors.replaced([])

    steps: list[Callable[[], None]] = [want, replaced] if first == "manifests" else [replaced, want]
    steps[0]()
    assert world.mirrors.uid_of(static()) == ""
    steps[1]()
    await eventually(lambda: world.hashes() == ["h1"])
    world.mirrors.changed(world.only_mirror())
    assert world.mirrors.uid_of(static()) == world.only_mirror().uid
    assert world.mirrors.static_pod_of(world.only_mirror()) is not None


async def test_a_deleted_mirror_pod_is_created_again(world: World):
    world.mirrors.set_static_pods({static().full_name: static()})
    world.mirrors.replaced([])
    await eventually(lambda: world.hashes() == ["h1"])
    before = world.only_mirror()
    world.mirrors.changed(before)
    world.server.delete(f"{PODS}/web-n1", grace=0)
    world.mirrors.deleted(before)
    await eventually(lambda: [mirror.uid for mirror in world.there()] not in ([], [before.uid]))


async def test_one_of_another_hash_is_replaced_and_one_without_a_pod_taken_away(world: World):
    for name in ("web-n1", "gone-n1"):
        world.server.create(f"{PODS}/{name}", mirror_of(static(name), "n1", "node-uid"))
    world.mirrors.set_static_pods({static().full_name: static(digest="h2")})
    world.mirrors.replaced(world.there())
    await eventually(lambda: world.hashes() == ["h2"])
    assert world.only_mirror().metadata.name == "web-n1"


async def test_a_namesake_of_another_uid_is_not_deleted(world: World):
    world.server.create(f"{PODS}/web-n1", mirror_of(static(digest="old"), "n1", "node-uid"))
    old = world.only_mirror()
    world.server.delete(f"{PODS}/web-n1", grace=0)
    world.server.create(f"{PODS}/web-n1", mirror_of(static(digest="other"), "n1", "node-uid"))
    world.mirrors.replaced([old])
    world.mirrors.set_static_pods({})
    await eventually(lambda: world.requests("DELETE") == 1 and not world.mirrors._tasks)
    assert world.hashes() == ["other"]


async def test_a_refused_mirror_is_retried(world: World):
    world.server.fail(500, path="/pods", times=3)
    world.mirrors.replaced([])
    world.mirrors.set_static_pods({static().full_name: static()})
    await eventually(lambda: world.hashes() == ["h1"])


async def test_a_mirror_whose_creation_fails_unexpectedly_is_retried(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    create, failures = world.mirrors._client.create, [RuntimeError("a bug")]

    async def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await create(*args)

    monkeypatch.setattr(world.mirrors._client, "create", failing)
    world.mirrors.replaced([])
    world.mirrors.set_static_pods({static().full_name: static()})
    await eventually(lambda: world.hashes() == ["h1"])


async def test_a_mirror_deleted_before_its_creation_is_answered_is_created_again(world: World):
    world.mirrors.set_static_pods({static().full_name: static()})
    world.mirrors.replaced([])
    create, client = world.mirrors._client.create, world.mirrors._client

    async def slow(*args: Any) -> Pod:
        made: Pod = await create(*args)
        client.create = create  # type: ignore[method-assign]
        world.mirrors.changed(made)
        world.server.delete(f"{PODS}/web-n1", grace=0)
        world.mirrors.deleted(made)
        return made

    client.create = slow  # type: ignore[method-assign,assignment]
    await eventually(lambda: world.requests("POST") == 2 and world.hashes() == ["h1"])
