"""A restarted agent reports of starting containers only the results that their probes have had."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.ports import free_port
from tests.probes.probed_pods import OK, replying, serving
from tests.waiting import eventually


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="ks-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = Rig(Path(short), runtime.socket)
            await rig.start()
            yield rig
            await rig.close()


def probe_count(rig: Rig) -> int:
    """Return the number of probes that the current agent has made."""
    probes: Any = rig.node.components["probes"] if rig.node is not None else None
    return sum(sum(probe["outcomes"].values()) for probe in probes.describe()["probes"])


def shown_ready(rig: Rig) -> bool:
    pod = rig.pod("slow")
    if pod is None:
        return False
    ready = {condition.type: condition.status for condition in pod.status.conditions or ()}.get("Ready")
    return ready == "True" or any(status.ready for status in pod.status.container_statuses or ())


def came_back(rig: Rig) -> dict[tuple[str, ...], float]:
    assert rig.node is not None
    metric: Any = rig.node.registry.metrics["kubengine_probe_restored_containers_total"]
    return dict(metric.values)


@pytest.mark.parametrize("also", [{}, {"readinessProbe": {"tcpSocket": {"port": 1}}}], ids=["", "readiness"])
async def test_a_pod_that_was_still_starting_is_not_ready(rig, also):
    port = free_port()
    app = container("app", startupProbe={"tcpSocket": {"port": port}, "failureThreshold": 1000}, **also)
    quick = '{"app": {"startup": {"periodMilliseconds": 50}}}'
    rig.write("slow", {"containers": [app]}, annotations={"kubengine.dev/probes": quick})
    await eventually(lambda: rig.phase("slow") == "Running" and probe_count(rig) >= 2)
    assert not shown_ready(rig)
    for _ in range(3):
        await rig.restart()
        seen = []

        def probed(seen=seen):
            seen.append(shown_ready(rig))
            return probe_count(rig) >= 2

        await eventually(probed)
        assert not any(seen)
        decisions = [each for each in rig.node.decisions.after(0) if each.kind == "probes"]
        assert [(each.outcome, each.container, each.inputs["started"]) for each in decisions] == [
            ("waiting", "app", False)
        ]
        assert came_back(rig) == {("waiting",): 1}


async def test_it_is_ready_once_it_has_started_and_stays_so(rig):
    async with serving(replying(OK)) as port:
        app = container("app", startupProbe={"tcpSocket": {"port": port}})
        rig.write("slow", {"containers": [app]})
        await eventually(lambda: shown_ready(rig))
    await rig.restart()
    await eventually(lambda: shown_ready(rig))
    assert came_back(rig) == {("ready",): 1}
    assert not [each for each in rig.node.decisions.after(0) if each.kind == "probes"]
