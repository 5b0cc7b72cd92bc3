"""Reporting the Node's status while responses and the watch overtake each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.node import Node, NodeStatus
from engine.api.quantity import Quantity
from engine.cluster.client import ApiError
from engine.cluster.node_status_manager import ApiNode, NodeStatusManager
from tests.contexts import node_context

PATCHED = "/api/v1/nodes/n1/status"


def node(version: int, **status: Any) -> ApiNode:
    return ApiNode(ObjectMeta(name="n1", uid="u", resource_version=str(version)), status=status)


class Server:
    """Answer a patch with version 2, after `meanwhile` has delivered the watch's events."""

    def __init__(self) -> None:
        self.patches: list[dict[str, Any]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.created = 0
        self.relisted = asyncio.Event()
        self.is_deleted = False

    async def get(self, path: str, kind: type[ApiNode]) -> ApiNode:
        if self.is_deleted:
            raise ApiError("not found", subject=path, code=404, reason="NotFound", retry_after=0.0)
        return node(1)

    async def create(self, path: str, value: Any, kind: type[ApiNode]) -> ApiNode:
        self.created += 1
        return node(1)

    def set_back(self) -> None:
        self.relisted.set()

    async def patch(self, path: str, value: dict[str, Any], kind: type[ApiNode]) -> ApiNode:
        assert path == PATCHED
        self.patches.append(value["status"])
        self.meanwhile()
        return node(2, capacity={"cpu": "2"}, allocatable={"cpu": "2"}, conditions=[])


def manager(
    server: Server, *, register: bool = False, amounts: dict[str, Quantity] | None = None
) -> NodeStatusManager:
    amounts = amounts if amounts is not None else {"cpu": Quantity.parse("2")}

    async def describe() -> Node:
        return Node(status=NodeStatus(capacity=amounts, allocatable=amounts, conditions=[]))

    config = KubeletConfiguration(register_node=register)
    return NodeStatusManager(
        node_context(config, name="n1", clock=lambda: 0.0),
        server,  # type: ignore[arg-type]
        describe=describe,
        changed=lambda _metadata, _spec, _status: None,
        chance=random.Random(1),
    )


async def test_a_change_from_the_watch_during_a_patch_is_kept():
    server = Server()
    keeper = manager(server)
    capacity = {"cpu": "2", "example.com/dongle": "4"}
    given = node(3, capacity=capacity, allocatable={"cpu": "2"}, conditions=[])
    server.meanwhile = lambda: keeper.on_changed(given)
    assert await keeper.report()
    server.meanwhile = lambda: None
    assert await keeper.report()
    assert server.patches[1:] == [{"allocatable": {"example.com/dongle": "4"}}]


async def test_a_plugins_resource_becomes_zero_once_and_another_clients_amount_stays():
    server = Server()
    amounts = {"cpu": Quantity.parse("2"), "example.com/gpu": Quantity.parse("4")}
    keeper = manager(server, amounts=amounts)
    version = 2

    def accept() -> None:
        nonlocal version
        version += 1
        sent = server.patches[-1]
        capacity = {"cpu": "2", **sent.get("capacity", {})}
        keeper.on_changed(node(version, capacity=capacity, allocatable=capacity, conditions=[]))

    server.meanwhile = accept
    assert await keeper.report()
    del amounts["example.com/gpu"]
    assert await keeper.report()
    assert server.patches[-1]["capacity"] == {"example.com/gpu": "0"}
    advertised = {"cpu": "2", "example.com/gpu": "8"}
    keeper.on_changed(node(9, capacity=advertised, allocatable=advertised, conditions=[]))
    before = len(server.patches)
    assert await keeper.report()
    assert len(server.patches) == before


async def test_a_patch_answered_before_the_deletion_does_not_bring_a_deleted_node_back():
    """The watch reports the deletion first; then come the response, and the lease that went with the Node."""
    server = Server()
    keeper = manager(server, register=True)
    patched = asyncio.Event()

    def delete() -> None:
        server.is_deleted = True
        keeper.on_deleted(node(1))
        patched.set()

    server.meanwhile = delete
    running = asyncio.create_task(keeper.run())
    await patched.wait()
    keeper.lost()
    await server.relisted.wait()
    running.cancel()
    assert server.created == 1
