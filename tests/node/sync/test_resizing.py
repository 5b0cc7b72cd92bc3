"""Resizes that have to wait for room, and two that want the same room."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.api.documents import parse_pods
from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.metrics import Collected, Metric
from engine.node.sync.resize_metrics import requested_resizes
from engine.node.sync.worker import PodWorker
from engine.runtime import hollow as hollow_runtime
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually


def write(rig: Rig, name: str, milli: int) -> None:
    rig.write(name, {"containers": [container(resources={"requests": {"cpu": f"{milli}m"}})]})


def requested(rig: Rig, name: str) -> int:
    return int(rig.pod(name).spec.containers[0].requests["cpu"].milli)


def condition(rig: Rig, name: str) -> str:
    conditions = rig.pod(name).status.conditions or []
    return next((c.reason for c in conditions if c.type == "PodResizePending"), "")


def series(rig: Rig, name: str) -> dict[tuple[str, ...], float]:
    assert rig.node is not None
    metric: Any = rig.node.registry.metrics[f"kubelet_{name}"]
    if isinstance(metric, Collected):
        return dict(metric.collect())
    return metric.values if isinstance(metric, Metric) else {k: sum(v) for k, v in metric.counts.items()}


@pytest.fixture
async def half(rig: Rig) -> int:
    """Run two pods with 100 milli-CPU each; return half of the allocatable CPU."""
    node = await rig.start()
    write(rig, "a", 100)
    write(rig, "b", 100)
    await eventually(lambda: rig.phase("a") == rig.phase("b") == "Running")
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


async def test_a_deferred_resize_proceeds_when_another_pod_shrinks(rig: Rig, half: int):
    write(rig, "a", half)
    await eventually(lambda: requested(rig, "a") == half)
    write(rig, "b", half + 100)
    await eventually(lambda: condition(rig, "b") == "Deferred")
    assert requested(rig, "b") == 100
    assert series(rig, "pod_pending_resizes") == {("deferred",): 1}
    write(rig, "a", 100)
    await eventually(lambda: requested(rig, "b") == half + 100)
    assert condition(rig, "b") == ""
    assert series(rig, "pod_pending_resizes") == {}
    assert series(rig, "pod_deferred_accepted_resizes_total") == {("pod_resized",): 1}
    assert series(rig, "container_requested_resizes_total") == {
        ("cpu", "requests", "increase"): 2,
        ("cpu", "requests", "decrease"): 1,
    }
    await eventually(lambda: series(rig, "pod_resize_duration_milliseconds") == {("true",): 3})
    assert series(rig, "pod_in_progress_resizes") == {(): 0}


async def test_an_infeasible_resize_is_counted_with_its_reason(rig: Rig, half: int):
    write(rig, "a", 2 * half + 1000)
    await eventually(lambda: condition(rig, "a") == "Infeasible")
    assert series(rig, "pod_infeasible_resizes_total") == {("insufficient_node_allocatable",): 1}
    assert series(rig, "pod_pending_resizes") == {("infeasible",): 1}


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [
        ({}, {"requests": {"cpu": "1"}}, [("cpu", "requests", "add")]),
        ({"limits": {"memory": "1Gi"}}, {}, [("memory", "limits", "remove")]),
        (
            {"limits": {"memory": "1Gi", "cpu": "1"}},
            {"limits": {"memory": "2Gi", "cpu": "500m"}},
            [("memory", "limits", "increase"), ("cpu", "limits", "decrease")],
        ),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1000m"}}, []),
    ],
)
def test_each_changed_amount_is_one_requested_resize(
    before: dict[str, Any], after: dict[str, Any], counted: list[tuple[str, str, str]]
):
    old, new = (
        parse_pods(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "p"},
                    "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
                }
            ).encode(),
            "p",
        )[0][0]
        for resources in (before, after)
    )
    assert list(requested_resizes(old, new)) == counted


async def test_two_resizes_do_not_get_the_same_resources(
    rig: Rig, hollow: HollowRuntime, half: int, monkeypatch: pytest.MonkeyPatch
):
    updating, go_on = hold_updates(hollow, monkeypatch)
    write(rig, "a", half + 100)
    await eventually(updating.is_set)
    write(rig, "b", half + 100)
    await eventually(lambda: condition(rig, "b") == "Deferred")
    go_on.set()
    await eventually(lambda: requested(rig, "a") == half + 100)
    write(rig, "a", 100)
    await eventually(lambda: requested(rig, "b") == half + 100)


async def test_a_withdrawn_resize_reserves_nothing(rig: Rig, half: int):
    write(rig, "a", half)
    await eventually(lambda: requested(rig, "a") == half)
    write(rig, "b", half + 100)
    await eventually(lambda: condition(rig, "b") == "Deferred")
    write(rig, "b", 100)
    await eventually(lambda: condition(rig, "b") == "")
    write(rig, "c", half - 100)
    await eventually(lambda: rig.phase("c") == "Running")


async def test_a_resize_that_another_follows_while_it_is_carried_out(
    rig: Rig, hollow: HollowRuntime, half: int, monkeypatch: pytest.MonkeyPatch
):
    updating, go_on = hold_updates(hollow, monkeypatch)
    heard, update = list[Pod](), PodWorker.update
    monkeypatch.setattr(PodWorker, "update", lambda worker, pod: (heard.append(pod), update(worker, pod)))
    write(rig, "a", 200)
    await eventually(updating.is_set)
    write(rig, "a", 300)
    await eventually(lambda: len(heard) == 2)
    go_on.set()
    await eventually(lambda: requested(rig, "a") == 300)


def write_init(rig: Rig, milli: int) -> None:
    amounts = {"resources": {"requests": {"cpu": f"{milli}m"}}}
    inits = [container("i", **amounts), container("later", **amounts)]
    rig.write("p", {"initContainers": inits, "containers": [container("app", **amounts)]})


async def test_a_running_init_container_is_resized_and_the_next_starts_with_its_new_amount(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    update, updated = hollow.backend.update_resources, dict[str, int]()

    async def note_update(held: Any, wanted: Any) -> None:
        updated[held.config.metadata.name] = wanted.cpu_shares
        await update(held, wanted)

    def begun(name: str) -> Any:
        held = hollow.service.records.containers.values()
        return next((c for c in held if c.config.metadata.name == name), None)

    monkeypatch.setattr(hollow.backend, "update_resources", note_update)
    await rig.start()
    write_init(rig, 100)
    await eventually(lambda: begun("i") is not None and begun("i").started_at)
    write_init(rig, 1000)
    await eventually(lambda: updated == {"i": 1024})
    hollow.end_container(begun("i").id, exit_code=0)
    await eventually(lambda: begun("later") is not None and begun("later").started_at)
    assert begun("later").config.linux.resources.cpu_shares == 1024
    (first, _) = rig.pod("p").status.init_container_statuses
    assert first.restart_count == 0


async def test_a_pod_level_resize_restarts_containers_with_a_restart_policy_for_it(rig: Rig):
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    own = {"requests": {"cpu": "10m"}, "limits": {"cpu": "20m"}}

    def write_pod(milli: int) -> None:
        amounts = {"requests": {"cpu": "50m"}, "limits": {"cpu": f"{milli}m"}}
        containers = [
            container("bare", resizePolicy=policy),
            container("own", resources=own, resizePolicy=policy),
            container("stays"),
        ]
        rig.write("whole", {"containers": containers, "resources": amounts})

    await rig.start()
    write_pod(100)
    await eventually(lambda: rig.phase("whole") == "Running")
    uid = rig.pod("whole").uid
    write_pod(150)
    await eventually(lambda: rig.pod("whole").spec.resources.limits["cpu"].milli == 150)
    assert rig.pod("whole").uid == uid

    def restarts() -> dict[str, int]:
        statuses = rig.pod("whole").status.container_statuses
        return {s.name: s.restart_count for s in statuses if s.state.running is not None}

    await eventually(lambda: restarts() == {"bare": 1, "own": 0, "stays": 0})


async def test_a_container_that_a_resize_stops_starts_again_also_if_it_ends_well(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hollow_runtime, "TERMINATED", 0)
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]

    def write_job(milli: int) -> None:
        job = container(resources={"requests": {"cpu": f"{milli}m"}}, resizePolicy=policy)
        rig.write("job", {"containers": [job], "restartPolicy": "OnFailure"})

    def runs() -> int:
        pod = rig.pod("job")
        statuses = (pod and pod.status.container_statuses) or ()
        return sum(1 + status.restart_count for status in statuses if status.state.running is not None)

    await rig.start()
    for number, milli in enumerate((20, 30, 40), 1):
        write_job(milli)
        await eventually(lambda number=number: runs() == number)
        assert rig.phase("job") == "Running"
    assert "BackOff" not in rig.reasons()


async def test_the_runtime_receives_the_new_amounts_of_a_pod_and_may_refuse_them(
    rig: Rig, hollow: HollowRuntime, half: int, monkeypatch: pytest.MonkeyPatch
):
    (sandbox,) = (
        each for each in hollow.service.records.sandboxes.values() if each.config.metadata.name == "a-n1"
    )
    write(rig, "a", 200)
    await eventually(lambda: requested(rig, "a") == 200)
    assert sandbox.config.linux.resources.cpu_shares == 204

    async def refuse(*_: object) -> None:
        raise Refused("a plugin says no")

    monkeypatch.setattr(RuntimeClient, "update_pod_sandbox_resources", refuse)
    write(rig, "a", 300)
    await eventually(lambda: "ResizeError" in rig.reasons())
    assert hollow.counts().get("UpdateContainerResources", {}).get("calls") == 1
    (said,) = (e.message for e in rig.node.recorder if e.reason == "ResizeError")
    assert "a plugin says no" in said
