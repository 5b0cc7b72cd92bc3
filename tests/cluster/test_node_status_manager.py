"""What the node's keeper does when answers and the watch overtake each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from engine.api.meta import ObjectMeta
from engine.api.node import Node, NodeStatus
from engine.api.quantity import Quantity
from engine.cluster.node_status_manager import ApiNode, NodeStatusManager

PATCHED = "/api/v1/nodes/n1/status"


def node(version: int, **status: Any) -> ApiNode:
    return ApiNode(ObjectMeta(name="n1", uid="u", resource_version=str(version)), status=status)


class Server:
    """Answers a patch with version 2; what the watch tells meanwhile comes before the answer."""

    def __init__(self) -> None:
        self.patches: list[dict[str, Any]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def get(self, path: str, kind: type[ApiNode]) -> ApiNode:
        return node(1)

    async def patch(self, path: str, value: dict[str, Any], kind: type[ApiNode]) -> ApiNode:
        assert path == PATCHED
        self.patches.append(value["status"])
        self.meanwhile()
        return node(2, capacity={"cpu": "2"}, allocatable={"cpu": "2"}, conditions=[])


async def test_what_the_watch_told_during_a_patch_is_not_forgotten():
    server = Server()

    async def describe() -> Node:
        amounts = {"cpu": Quantity.parse("2")}
        return Node(status=NodeStatus(capacity=amounts, allocatable=amounts, conditions=[]))

    keeper = NodeStatusManager(
        server,  # type: ignore[arg-type]
        "n1",
        describe=describe,
        changed=lambda _metadata, _spec, _status: None,
        register=False,
        controller_attaches=True,
        update_seconds=10,
        report_seconds=300,
        clock=lambda: 0.0,
        chance=random.Random(1),
    )
    capacity = {"cpu": "2", "example.com/dongle": "4"}
    given = node(3, capacity=capacity, allocatable={"cpu": "2"}, conditions=[])
    server.meanwhile = lambda: keeper.heard(given)
    assert await keeper.tell()
    server.meanwhile = lambda: None
    assert await keeper.tell()
    assert server.patches[1:] == [{"allocatable": {"example.com/dongle": "4"}}]
