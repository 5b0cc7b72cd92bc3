"""Resizes that have to wait for room, and two that want the same room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.api.pod import Pod
from engine.node.worker import PodWorker
from engine.runtime.hollow import HollowRuntime
from tests.node_bench import Bench, container
from tests.waiting import eventually


def write(bench: Bench, name: str, milli: int) -> None:
    bench.write(name, {"containers": [container(resources={"requests": {"cpu": f"{milli}m"}})]})


def requested(bench: Bench, name: str) -> int:
    return int(bench.pod(name).spec.containers[0].requests["cpu"].milli)


def condition(bench: Bench, name: str) -> str:
    conditions = bench.pod(name).status.conditions or []
    return next((c.reason for c in conditions if c.type == "PodResizePending"), "")


@pytest.fixture
async def half(bench: Bench) -> int:
    """Two pods of a hundred milli-CPU each are running; half of what the node can give."""
    node = await bench.start()
    write(bench, "a", 100)
    write(bench, "b", 100)
    await eventually(lambda: bench.phase("a") == bench.phase("b") == "Running")
    return int(node.node_object().allocatable["cpu"].milli) // 2


def hold_updates(
    hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Event, asyncio.Event]:
    """Set once the runtime was asked to resize a container, and to be set to let it."""
    update, updating, go_on = hollow.backend.update_resources, asyncio.Event(), asyncio.Event()

    async def slow_update(*args: Any) -> None:
        updating.set()
        await go_on.wait()
        await update(*args)

    monkeypatch.setattr(hollow.backend, "update_resources", slow_update)
    return updating, go_on


async def test_a_deferred_resize_goes_ahead_when_another_pod_shrinks(bench: Bench, half: int):
    write(bench, "a", half)
    await eventually(lambda: requested(bench, "a") == half)
    write(bench, "b", half + 100)
    await eventually(lambda: condition(bench, "b") == "Deferred")
    assert requested(bench, "b") == 100
    write(bench, "a", 100)
    await eventually(lambda: requested(bench, "b") == half + 100)
    assert condition(bench, "b") == ""


async def test_two_resizes_do_not_get_the_same_room(
    bench: Bench, hollow: HollowRuntime, half: int, monkeypatch: pytest.MonkeyPatch
):
    updating, go_on = hold_updates(hollow, monkeypatch)
    write(bench, "a", half + 100)
    await eventually(updating.is_set)
    write(bench, "b", half + 100)
    await eventually(lambda: condition(bench, "b") == "Deferred")
    go_on.set()
    await eventually(lambda: requested(bench, "a") == half + 100)
    write(bench, "a", 100)
    await eventually(lambda: requested(bench, "b") == half + 100)


async def test_a_resize_that_is_taken_back_holds_nothing(bench: Bench, half: int):
    write(bench, "a", half)
    await eventually(lambda: requested(bench, "a") == half)
    write(bench, "b", half + 100)
    await eventually(lambda: condition(bench, "b") == "Deferred")
    write(bench, "b", 100)
    await eventually(lambda: condition(bench, "b") == "")
    write(bench, "c", half - 100)
    await eventually(lambda: bench.phase("c") == "Running")


async def test_a_resize_that_another_follows_while_it_is_carried_out(
    bench: Bench, hollow: HollowRuntime, half: int, monkeypatch: pytest.MonkeyPatch
):
    updating, go_on = hold_updates(hollow, monkeypatch)
    heard, update = list[Pod](), PodWorker.update
    monkeypatch.setattr(PodWorker, "update", lambda worker, pod: (heard.append(pod), update(worker, pod)))
    write(bench, "a", 200)
    await eventually(updating.is_set)
    write(bench, "a", 300)
    await eventually(lambda: len(heard) == 2)
    go_on.set()
    await eventually(lambda: requested(bench, "a") == 300)


def write_init(bench: Bench, milli: int) -> None:
    amounts = {"resources": {"requests": {"cpu": f"{milli}m"}}}
    inits = [container("i", **amounts), container("later", **amounts)]
    bench.write("p", {"initContainers": inits, "containers": [container("app", **amounts)]})


async def test_an_init_container_that_runs_is_resized_and_the_next_begins_with_its_new_amount(
    bench: Bench, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    update, updated = hollow.backend.update_resources, dict[str, int]()

    async def note_update(held: Any, wanted: Any) -> None:
        updated[held.config.metadata.name] = wanted.cpu_shares
        await update(held, wanted)

    def begun(name: str) -> Any:
        held = hollow.service.records.containers.values()
        return next((c for c in held if c.config.metadata.name == name), None)

    monkeypatch.setattr(hollow.backend, "update_resources", note_update)
    await bench.start()
    write_init(bench, 100)
    await eventually(lambda: begun("i") is not None and begun("i").started_at)
    write_init(bench, 1000)
    await eventually(lambda: updated == {"i": 1024})
    hollow.end_container(begun("i").id, exit_code=0)
    await eventually(lambda: begun("later") is not None and begun("later").started_at)
    assert begun("later").config.linux.resources.cpu_shares == 1024
    (first, _) = bench.pod("p").status.init_container_statuses
    assert first.restart_count == 0
