"""Pods that nobody wants, and pods that come back with the same uid, are counted as by a kubelet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.cri.client import RuntimeClient
from tests.node_rig import Rig, container
from tests.waiting import eventually


def counted(rig: Rig, name: str) -> dict[tuple[str, ...], float]:
    assert rig.node is not None
    metric: Any = rig.node.registry.metrics[f"kubelet_{name}"]
    values: dict[tuple[str, ...], float] = getattr(metric, "values", None) or {
        labels: sum(found) for labels, found in getattr(metric, "counts", {}).items()
    }
    return values


async def test_a_pod_whose_manifest_was_deleted_while_no_agent_ran_is_orphaned(rig: Rig) -> None:
    await rig.start()
    path = rig.write("web", {"containers": [container("a"), container("b"), container("c")]})
    await eventually(lambda: rig.phase("web") == "Running")
    assert counted(rig, "orphaned_runtime_pods_total").get((), 0) == 0  # set by the first clean-up
    assert counted(rig, "containers_per_pod_count") == {(): 1}
    await rig.stop()
    path.unlink()
    node = await rig.start()
    await eventually(lambda: not node.running.watch.pods)
    assert counted(rig, "orphaned_runtime_pods_total") == {(): 1}


async def test_a_pod_that_returns_while_terminating_is_restarted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, go_on, stop = asyncio.Event(), asyncio.Event(), RuntimeClient.stop_container

    async def slow_stop(*args: Any, **named: Any) -> None:
        stopping.set()
        await go_on.wait()
        await stop(*args, **named)

    monkeypatch.setattr(RuntimeClient, "stop_container", slow_stop)
    node = await rig.start()
    spec = {"containers": [container()]}
    path = rig.write("web", spec)
    await eventually(lambda: rig.phase("web") == "Running")
    path.unlink()
    await eventually(stopping.is_set)
    rig.write("web", spec)
    await eventually(lambda: node.running.pods._returning)
    go_on.set()
    await eventually(lambda: counted(rig, "restarted_pods_total") == {("true",): 1})
    await eventually(lambda: rig.phase("web") == "Running")
