"""Tests that each subsystem of a running node refuses a misspelled parameter of a query."""

from __future__ import annotations

import json

import pytest

from engine.server.http.exchange import Request
from engine.server.routes import Routes
from tests.node_rig import Rig

ACTIONS = [
    ("admission", "dry-run", {"pod": "{}", "polciy": "fewest"}),
    ("cgroups", "check", {"fxi": "true"}),
    ("containers", "gc", {"dry-run": "true"}),
    ("images", "gc", {"dryrun": "true"}),
]


async def test_every_component_rejects_unknown_parameters(rig: Rig) -> None:
    node = await rig.start()
    components = [name for name, component in node.components.items() if hasattr(component, "describe")]
    assert len(components) >= 8
    for name in components:
        got = await Routes(node).answer(Request("GET", f"/kubengine/{name}", {"colour": "red"}))
        body = got.body if isinstance(got.body, bytes) else b""
        assert (name, got.status) == (name, 400)
        assert json.loads(body)["error"].startswith(f"{name}: unknown query parameter colour; ")
        assert (await Routes(node).answer(Request("GET", f"/kubengine/{name}"))).status == 200


@pytest.mark.parametrize(("room", "action", "query"), ACTIONS, ids=[room for room, _, _ in ACTIONS])
async def test_orders_with_a_mistyped_parameter_are_not_carried_out(
    rig: Rig, room: str, action: str, query: dict[str, str]
) -> None:
    node = await rig.start()
    got = await Routes(node).answer(Request("POST", f"/kubengine/{room}/{action}", query, trusted=True))
    body = got.body if isinstance(got.body, bytes) else b""
    assert got.status == 400
    assert f"unknown query parameter {list(query)[-1]}; " in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("room", "action", "query"),
    [("cgroups", "check", {"fix": "yes"}), ("images", "gc", {"dry-run": "maybe"})],
)
async def test_an_order_that_is_neither_on_nor_off_is_refused(
    rig: Rig, room: str, action: str, query: dict[str, str]
) -> None:
    node = await rig.start()
    got = await Routes(node).answer(Request("POST", f"/kubengine/{room}/{action}", query, trusted=True))
    assert got.status == 400
    assert b"expected true or false" in (got.body if isinstance(got.body, bytes) else b"")
