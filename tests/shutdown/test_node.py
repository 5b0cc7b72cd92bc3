"""A node whose machine shuts down: its pods' statuses, its condition, whom it takes, and what runs after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.duration import Duration
from engine.api.pod import Pod
from engine.hostsetup import setup
from engine.hostsetup.host_places import HostPlaces
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.shutdown.logind import StandInLogind
from tests.waiting import eventually

Up = tuple[Rig, StandInLogind]


@pytest.fixture
async def hollow(tmp_path: Path) -> AsyncIterator[HollowRuntime]:
    async with HollowRuntime(tmp_path / "runtime.sock") as runtime:
        runtime.images.add("busybox:1")
        yield runtime


@pytest.fixture
async def up(
    tmp_path: Path,
    bus: str,
    logind: Callable[..., StandInLogind],
    hollow: HollowRuntime,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Up]:
    monkeypatch.setattr(setup, "set_open_files", lambda _most: None)
    rig = Rig(tmp_path, hollow.socket)
    rig.config.shutdown_grace_period = Duration(20)
    rig.config.shutdown_grace_period_critical_pods = Duration(10)
    rig.config.make_ip_tables_util_chains = False
    (tmp_path / "score").touch()
    rig.host = HostPlaces(
        sysctls=tmp_path,
        swaps=tmp_path / "swaps",
        kmsg=tmp_path / "kmsg",
        oom_score=tmp_path / "score",
        system_bus=bus,
        logind_drop_ins=tmp_path / "logind.conf.d",
    )
    served = logind()
    await rig.start()
    yield rig, served
    await rig.close()


def ready(rig: Rig) -> Any:
    assert rig.node is not None
    (condition,) = (each for each in rig.node.node_object().status.conditions or () if each.type == "Ready")
    return condition


def rejections(rig: Rig) -> dict[tuple[str, ...], float]:
    assert rig.node is not None
    return rig.node.registry.counter("kubelet_admission_rejections_total", "", ["reason"]).values


def pod_named(rig: Rig, name: str) -> Pod:
    pod = rig.pod(name)
    assert pod is not None
    return pod


async def test_pods_have_ended_before_the_machine_goes_down(up: Up):
    rig, served = up
    rig.write("web", {"terminationGracePeriodSeconds": 1, "containers": [container()]})
    await eventually(lambda: rig.phase("web") == "Running" and served.locks_held() == [True])
    assert ready(rig).status == "True"
    served.prepare_for_shutdown(True)
    await eventually(lambda: served.locks_held() == [False])
    status = pod_named(rig, "web").status
    assert (status.phase, status.reason) == ("Failed", "Terminated")
    assert status.message == "Pod was terminated in response to imminent node shutdown."
    (disrupted,) = (each for each in status.conditions or () if each.type == "DisruptionTarget")
    assert (disrupted.status, disrupted.reason) == ("True", "TerminationByKubelet")
    assert (ready(rig).status, ready(rig).reason) == ("False", "KubeletNotReady")
    assert ready(rig).message == "node is shutting down"
    rig.write("late", {"containers": [container()]})
    await eventually(lambda: rig.phase("late") == "Failed")
    late = pod_named(rig, "late").status
    assert (late.reason, late.message) == (
        "NodeShutdown",
        "Pod was rejected: Pod was rejected as the node is shutting down.",
    )
    assert rejections(rig) == {("NodeShutdown",): 1}


async def test_static_pods_run_again_after_the_reboot(up: Up):
    rig, served = up
    rig.write("web", {"terminationGracePeriodSeconds": 1, "containers": [container()]})
    await eventually(lambda: rig.phase("web") == "Running" and served.locks_held() == [True])
    served.prepare_for_shutdown(True)
    await eventually(lambda: rig.phase("web") == "Failed" and served.locks_held() == [False])
    await rig.restart()
    await eventually(lambda: rig.phase("web") == "Running")
    assert ready(rig).status == "True"
