"""Running pods are known before new pods are judged: restarts, edits, ends and rejections of whole nodes."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.duration import Duration
from engine.api.lifecycle import PodEnd
from engine.devices.checkpoint import decode
from engine.devices.checkpoint_file import FILE_NAME
from engine.host.records import lines
from engine.node.pod.record_names import ACCEPTED, END, LINK
from engine.node.running_node import RECORDS
from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import DevicePluginFault, SampleAllocation
from tests import records
from tests.devices.device_rig import GPU, DeviceRig
from tests.node_rig import container
from tests.waiting import eventually

PREFIX = "runtime.kubengine.dev/"
MOST_CPUS = f"{750 * (os.cpu_count() or 1)}m"
SLOW_STOP = {f"{PREFIX}stop-after": "300ms"}

LARGE = {"containers": [container(resources={"requests": {"cpu": MOST_CPUS}})]}
HOST_PORT = {"containers": [container(ports=[{"containerPort": 80, "hostPort": 18080}])]}
HOST_NETWORK = {
    "hostNetwork": True,
    "containers": [container(ports=[{"containerPort": 18081, "hostPort": 18081}])],
}
DEVICES = {"containers": [container(resources={"limits": {GPU: 2}})]}
KINDS = [
    pytest.param(LARGE, "UnexpectedAdmissionError", id="large"),
    pytest.param(HOST_PORT, "NodePorts", id="host-port"),
    pytest.param(HOST_NETWORK, "NodePorts", id="host-network"),
    pytest.param(DEVICES, "UnexpectedAdmissionError", id="devices"),
]


@pytest.fixture
async def rig() -> AsyncIterator[DeviceRig]:
    """Yield a started node with two devices on which no two pods of a kind in `KINDS` fit."""
    with tempfile.TemporaryDirectory(prefix="kt-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = DeviceRig(Path(short), runtime)
            await rig.start()
            await rig.plugin(2)
            yield rig
            await rig.close()


def with_image(spec: dict[str, Any], image: str) -> dict[str, Any]:
    return {**spec, "containers": [{**each, "image": image} for each in spec["containers"]]}


def sandboxes(rig: DeviceRig, name: str) -> int:
    records = rig.runtime.service.records.sandboxes.values()
    return sum(sandbox.config.metadata.name == f"{name}-n1" for sandbox in records)


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_running_pods_keep_their_resources_from_a_pod_that_sorts_first(rig, spec, reason):
    rig.write("m", spec)
    await eventually(lambda: rig.running("m"))
    await rig.node.stop()
    rig.write("a", spec)
    await rig.start()
    await eventually(lambda: rig.allocatable() == 2)
    await eventually(lambda: rig.phase("a") == "Failed" and rig.running("m"))
    assert rig.pod("a").status.reason == reason
    assert rig.runtime.counts()["StartContainer"]["calls"] == 1


async def test_devices_of_pods_that_run_are_never_given_out_again(rig):
    rig.wants("one")
    rig.wants("two")
    await eventually(lambda: rig.running("one", "two"))
    held = {name: rig.gpus(name) for name in ("one", "two")}
    await rig.node.stop()
    rig.write("a", {"containers": [container()]})
    rig.wants("b")
    await rig.start()
    await eventually(lambda: rig.running("a") and rig.allocatable() == 2)
    await eventually(lambda: rig.phase("b") == "Failed")
    assert await rig.listed() == {"a-n1": [], **{f"{name}-n1": ids for name, ids in held.items()}}
    assert {name: rig.gpus(name) for name in ("one", "two")} == held


@pytest.mark.parametrize("measured", [True, False], ids=["ours", "a-kubelets"])
async def test_devices_stay_allocated_until_a_pod_without_manifest_has_stopped(rig, measured):
    """Whether or not its other resources were recorded."""
    old = rig.write("old", DEVICES, annotations=SLOW_STOP)
    await eventually(lambda: rig.running("old"))
    uid, held = rig.runtime_uid("old"), rig.gpus("old", "c")
    await rig.node.stop()
    if not measured:
        records.remove(rig.root, ACCEPTED, uid)
    old.unlink()
    rig.write("a", DEVICES)
    seen: list[list[str]] = []
    stop = rig.runtime.backend.stop_container

    async def stop_and_record(stopped: object, grace: float) -> None:
        await rig.listed()
        await stop(stopped, grace)
        entries = decode((rig.plugin_dir / FILE_NAME).read_bytes()).pod_device_entries or ()
        seen.append(sorted(id for entry in entries if entry.pod_uid == uid for id in entry.devices))

    rig.runtime.backend.stop_container = stop_and_record
    await rig.start()
    await eventually(lambda: rig.running("a"))
    assert seen == [held]


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_an_edited_manifest_s_pod_runs_when_its_predecessor_is_gone(rig, spec, reason):
    rig.write("web", with_image(spec, "busybox:1"), annotations=SLOW_STOP)
    await eventually(lambda: rig.running("web"))
    uid = rig.pod("web").uid
    most = 0
    run = rig.runtime.backend.run_sandbox

    async def count(sandbox: object) -> object:
        nonlocal most
        most = max(most, sandboxes(rig, "web"))
        return await run(sandbox)

    rig.runtime.backend.run_sandbox = count
    rig.write("web", with_image(spec, "busybox:2"), annotations=SLOW_STOP)
    await eventually(lambda: rig.running("web") and rig.pod("web").uid != uid)
    assert most == 0, "its predecessor was there when it started"
    assert reason not in rig.reasons()


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_an_edit_while_no_agent_was_there_waits_too(rig, spec, reason):
    rig.write("web", with_image(spec, "busybox:1"), annotations=SLOW_STOP)
    await eventually(lambda: rig.running("web"))
    uid = rig.pod("web").uid
    await rig.node.stop()
    rig.write("web", with_image(spec, "busybox:2"), annotations=SLOW_STOP)
    await rig.start()
    await eventually(lambda: rig.pod("web") and rig.pod("web").uid != uid and rig.running("web"))
    assert sandboxes(rig, "web") == 1


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_a_pod_under_another_name_waits_for_the_one_that_makes_it_room(rig, spec, reason):
    """As on the kubelet, a pod without a source is not counted; here new pods also wait for its resources."""
    old = rig.write("old", spec, annotations=SLOW_STOP)
    await eventually(lambda: rig.running("old"))
    most = 0
    run = rig.runtime.backend.run_sandbox

    async def count(sandbox: object) -> object:
        nonlocal most
        running = [c for c in rig.runtime.service.records.containers.values() if c.state == 1]
        most = max(most, len(running))
        return await run(sandbox)

    rig.runtime.backend.run_sandbox = count
    old.unlink()
    rig.write("new", spec)
    await eventually(lambda: rig.running("new"))
    assert most == 0, "it started while what it needs was held"
    assert reason not in rig.reasons()


async def test_a_rejected_pod_is_admitted_once_resources_are_free(rig):
    first = rig.write("first", HOST_PORT)
    await eventually(lambda: rig.running("first"))
    rig.write("second", HOST_PORT)
    rig.write("third", HOST_PORT)
    await eventually(lambda: rig.phase("second") == rig.phase("third") == "Failed")
    first.unlink()
    await eventually(lambda: rig.running("second"))
    assert rig.phase("third") == "Failed"
    assert rig.reasons().count("NodePorts") == 2
    assert rig.node.registry.metrics["kubengine_rejected_pods_retried_total"].values[()] >= 1


async def test_a_rejected_pod_is_retried_when_its_plugin_returns(rig):
    rig.section.devices.admission_retry = Duration(0.5)
    rig.wants("first", 2)
    await eventually(lambda: rig.running("first"))
    (rig.manifests / "first.yaml").unlink()
    await eventually(lambda: not rig.node.pods())
    (plugin,) = rig.plugins
    await plugin.stop()
    await eventually(lambda: rig.allocatable() == 0)
    rig.wants("second")
    await eventually(lambda: rig.phase("second") == "Failed")
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.running("second"))


@pytest.mark.parametrize("fault", [DevicePluginFault.ALLOCATE_HANGS, DevicePluginFault.PREFERRED_HANGS])
async def test_a_plugin_that_hangs_holds_up_its_own_pod_alone(rig, fault):
    (plugin,) = rig.plugins
    if fault is DevicePluginFault.PREFERRED_HANGS:
        await plugin.stop()
        rig.plugins.clear()
        plugin = await rig.plugin(2, allocation=SampleAllocation(prefer=["gpu-1"]))
    await plugin.fail_with(fault)
    rig.wants("hangs")
    await eventually(lambda: rig.phase("hangs") == "Pending")
    rig.write("other", LARGE)
    await eventually(lambda: rig.running("other"))
    assert rig.phase("hangs") == "Pending"


ENDS = {
    "succeeded": ({}, "0", None, "Succeeded"),
    "failed": ({}, "3", None, "Failed"),
    "start-error": ({f"{PREFIX}start-error": "no such file"}, "0", None, "Failed"),
    "evicted": ({}, None, PodEnd("Evicted", "The node was low on resource: memory."), "Failed"),
    "preempted": ({}, None, PodEnd("Preempting", "Preempted", condition_reason="T"), "Failed"),
    "deadline": ({}, None, None, "Failed"),
}


@pytest.mark.parametrize("forgotten", [False, True], ids=["runtime-knows", "runtime-forgot"])
@pytest.mark.parametrize("how", ENDS)
async def test_a_pod_that_has_ended_stays_ended(rig, how, forgotten):
    annotations, code, end, phase = ENDS[how]
    if code is not None:
        annotations = {**annotations, f"{PREFIX}exit-after": "10ms", f"{PREFIX}exit-code": code}
    spec = {"containers": [container()], "restartPolicy": "Never"}
    if how == "deadline":
        spec["activeDeadlineSeconds"] = 1
    rig.write("job", spec, annotations=annotations)
    if end is not None:
        await eventually(lambda: rig.running("job"))
        await rig.node.kill_pod(rig.pod("job"), end)
    await eventually(lambda: rig.phase("job") == phase and not rig.node.active_pods())
    uid = rig.pod("job").uid
    await eventually(
        lambda: rig.pod("job").status.phase.encode() in (records.recorded(rig.root, uid, END) or b"")
    )
    status = rig.pod("job").status
    await rig.node.stop()
    calls = rig.runtime.counts()["StartContainer"]["calls"]
    if forgotten:
        rig.runtime.service.records.containers.clear()
        rig.runtime.service.records.sandboxes.clear()
    for sandbox in rig.runtime.service.records.sandboxes.values():
        sandbox.config.annotations.pop(f"{PREFIX}start-error", None)
    await rig.start()
    assert rig.phase("job") == phase
    assert rig.pod("job").status == status
    rig.write("later", {"containers": [container()]})
    await eventually(lambda: rig.running("later"))
    assert rig.pod("job").status == status
    assert rig.runtime.counts()["StartContainer"]["calls"] == calls + 1


async def test_a_pod_that_was_being_ended_is_ended_by_the_next_agent(rig):
    rig.write("victim", {"containers": [container()]}, annotations={f"{PREFIX}stop-after": "1s"})
    await eventually(lambda: rig.running("victim"))
    killing = asyncio.create_task(
        rig.node.kill_pod(rig.pod("victim"), PodEnd("Evicted", "The node was low on resource: memory."))
    )
    await eventually(lambda: "Killing" in rig.reasons())
    await rig.node.stop()
    killing.cancel()
    await rig.start()
    await eventually(lambda: rig.phase("victim") == "Failed")
    assert rig.pod("victim").status.reason == "Evicted"
    assert rig.runtime.counts()["StartContainer"]["calls"] == 1


async def test_an_invalid_termination_record_is_reported_and_delays_no_pod(rig, caplog):
    rig.write("job", {"containers": [container()], "restartPolicy": "Never"})
    await eventually(lambda: rig.running("job"))
    await rig.node.stop()
    uid = rig.runtime_uid("job")
    accepted = lines.line(f"{uid}/{(rig.root / 'pods' / uid / LINK).readlink()}/{END}", b"\xff{")
    with (rig.root / RECORDS).open("ab") as file:
        file.write(accepted)
    await rig.start()
    await eventually(lambda: rig.running("job"))
    assert f"{uid}/{END}" in caplog.text


async def test_a_start_that_failed_is_not_tried_again_by_the_next_agent_where_nothing_restarts(rig):
    spec = {"containers": [container("bad"), container("good")], "restartPolicy": "Never"}
    rig.write("job", spec, annotations={f"{PREFIX}start-error.bad": "no such file"})

    def state_of_bad() -> Any:
        pod = rig.pod("job")
        statuses = (pod.status.container_statuses if pod is not None else None) or []
        return next((s.state.terminated for s in statuses if s.name == "bad"), None)

    await eventually(lambda: rig.running("job") and state_of_bad())
    before = state_of_bad()
    assert before.reason == "StartError"
    calls = rig.runtime.counts()["StartContainer"]["calls"]
    await rig.restart()
    rig.write("later", {"containers": [container()]})
    await eventually(lambda: rig.running("job", "later"))
    assert rig.runtime.counts()["StartContainer"]["calls"] == calls + 1
    assert state_of_bad() == before
