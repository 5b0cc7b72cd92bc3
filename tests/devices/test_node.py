"""Devices on a whole node: manifests in, containers out, agents and plugins restarted under running pods."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.api.kubengine_config import DevicesSection
from engine.api.lifecycle import PodEnd
from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import DevicePluginFault, SampleAllocation, SampleDevicePlugin
from tests.devices.device_rig import GPU, DeviceRig
from tests.node_rig import container
from tests.waiting import eventually


@pytest.fixture
async def rig() -> AsyncIterator[DeviceRig]:
    with tempfile.TemporaryDirectory(prefix="kd-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = DeviceRig(Path(short), runtime)
            await rig.start()
            yield rig
            await rig.close()


async def test_a_manifest_s_container_gets_its_device(rig, tmp_path):
    await rig.plugin(2, allocation=SampleAllocation(mount=tmp_path, cdi=True))
    rig.wants("a")
    await eventually(lambda: rig.running("a"))
    config = rig.config_of("a")
    assert rig.gpus("a") == ["gpu-0"]
    assert ("/dev/gpu-0", "/dev/null") in {(d.container_path, d.host_path) for d in config.devices}
    assert ("/gpu", str(tmp_path), True) in {
        (m.container_path, m.host_path, m.readonly) for m in config.mounts
    }
    assert [d.name for d in config.CDI_devices] == ["example.com/gpu=gpu-0"]
    assert config.annotations["devices.example.com.gpu"] == "gpu-0"
    assert await rig.listed() == {"a-n1": ["gpu-0"]}


async def test_devices_survive_container_agent_and_plugin_restarts(rig):
    plugin = await rig.plugin(3)
    rig.wants("a")
    await eventually(lambda: rig.running("a"))
    rig.wants("b")
    await eventually(lambda: rig.running("b"))
    expected = {"a-n1": ["gpu-0"], "b-n1": ["gpu-1"]}
    uid = rig.pod("b").uid

    first = rig.config_of("b").metadata.attempt
    (id,) = [
        i for i, c in rig.runtime.service.records.containers.items() if c.sandbox.config.metadata.uid == uid
    ]
    rig.runtime.end_container(id, exit_code=0)
    await eventually(lambda: rig.config_of("b").metadata.attempt > first and rig.running("b"))
    assert rig.gpus("b") == ["gpu-1"]

    await rig.restart()
    await eventually(lambda: rig.running("a", "b") and rig.allocatable() == 3)
    assert await rig.listed() == expected
    assert rig.pod("b").uid == uid

    await plugin.stop()
    await eventually(lambda: rig.allocatable() == 0)
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.allocatable() == 3)
    assert await rig.listed() == expected

    await plugin.stop()
    await rig.restart()
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.running("a", "b") and rig.allocatable() == 3)
    assert await rig.listed() == expected
    rig.wants("c")
    await eventually(lambda: rig.running("c"))
    assert rig.gpus("c") == ["gpu-2"]


async def test_a_pod_deleted_while_the_agent_was_down_leaves_its_device(rig):
    await rig.plugin(1)
    rig.wants("gone")
    await eventually(lambda: rig.running("gone"))
    await rig.node.stop()
    (rig.manifests / "gone.yaml").unlink()
    await rig.start()
    await eventually(lambda: rig.allocatable() == 1 and rig.pod("gone") is None)
    rig.wants("next")
    await eventually(lambda: rig.running("next"))
    assert rig.gpus("next") == ["gpu-0"]


async def test_a_pod_with_a_failing_plugin_is_rejected_and_the_next_is_served(rig):
    plugin = await rig.plugin(1)
    await plugin.fail_with(DevicePluginFault.ALLOCATE_FAILS)
    rig.wants("unlucky")
    await eventually(lambda: rig.phase("unlucky") == "Failed")
    status = rig.pod("unlucky").status
    assert status.reason == "UnexpectedAdmissionError"
    assert "told to fail" in status.message
    await plugin.fail_with()
    rig.wants("lucky")
    await eventually(lambda: rig.running("lucky"))
    assert rig.gpus("lucky") == ["gpu-0"]


async def test_a_pod_waits_for_its_plugin_with_its_reason(rig):
    plugin = await rig.plugin(1)
    await plugin.stop()
    await rig.restart()
    rig.wants("patient")
    await eventually(lambda: rig.reason("patient") == "AwaitingDevicePlugin")
    status = rig.pod("patient").status
    assert status.phase == "Pending"
    assert status.message == "the device plugin of example.com/gpu has not come back yet"
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.running("patient"))
    assert rig.gpus("patient") == ["gpu-0"]
    assert rig.pod("patient").status.reason == ""
    outcomes = [d.outcome for d in rig.node.decisions.after(0) if d.kind == "admission"]
    assert outcomes == ["waiting", "admitted"]
    waits = rig.node.registry.metrics["kubengine_admission_waits_total"].values
    assert waits == {("AwaitingDevicePlugin",): 1}
    assert "UnexpectedAdmissionError" not in rig.reasons()


async def test_a_pod_that_waited_too_long_is_rejected_and_retried_when_its_plugin_registers(rig):
    plugin = await rig.plugin(1)
    await plugin.stop()
    await rig.stop()
    rig.section.devices = DevicesSection(admission_retry=0.2)
    await rig.start()
    rig.wants("patient")
    await eventually(lambda: rig.phase("patient") == "Failed")
    status = rig.pod("patient").status
    assert status.reason == "UnexpectedAdmissionError"
    assert "no healthy devices present" in status.message
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.running("patient"))


async def test_a_plugin_that_dies_during_allocate_rejects_no_pod(rig):
    plugin = await rig.plugin(1, faults=[DevicePluginFault.ALLOCATE_HANGS])
    rig.wants("patient")
    await eventually(rig.node.components["devices"].state.allocated)
    await plugin.stop()
    await eventually(lambda: rig.reason("patient") == "AwaitingDevicePlugin")
    await plugin.fail_with()
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.running("patient"))
    assert "UnexpectedAdmissionError" not in rig.reasons()


async def test_a_plugin_that_cancels_a_call_before_its_stream_ends_rejects_no_pod(rig, monkeypatch):
    """A server that stops may cancel its calls first."""
    asked = asyncio.Event()

    async def cancel(self: SampleDevicePlugin, request: Any, context: grpc.aio.ServicerContext) -> None:
        asked.set()
        await context.abort(grpc.StatusCode.CANCELLED)

    with monkeypatch.context() as stopping:
        stopping.setattr(SampleDevicePlugin, "Allocate", cancel)
        plugin = await rig.plugin(1)
        rig.wants("patient")
        await asked.wait()
        await asyncio.sleep(0.1)
        await plugin.stop()
    await eventually(lambda: rig.reason("patient") == "AwaitingDevicePlugin")
    await plugin.start()
    plugin.follow(rig.plugin_dir)
    await eventually(lambda: rig.running("patient"))
    assert "UnexpectedAdmissionError" not in rig.reasons()


async def test_a_pod_waits_for_devices_of_one_that_the_node_ends(rig):
    await rig.plugin(1)
    rig.write(
        "evicted",
        {"containers": [container("app", resources={"limits": {GPU: 1}})]},
        annotations={"runtime.kubengine.dev/stop-after": "500ms"},
    )
    await eventually(lambda: rig.running("evicted"))
    ending = asyncio.create_task(rig.node.kill_pod(rig.pod("evicted"), PodEnd("Evicted", "no room")))
    rig.wants("next")
    await eventually(lambda: rig.reason("next"))
    assert rig.reason("next") == "AwaitingDevices"
    await ending
    await eventually(lambda: rig.running("next"))
    assert rig.gpus("next") == ["gpu-0"]


async def test_init_surplus_is_for_others_once_the_apps_run(rig):
    await rig.node.stop()
    rig.section.devices = DevicesSection(release_init_surplus=True)
    await rig.start()
    await rig.plugin(3)
    wants = {"limits": {GPU: 3}}
    rig.write(
        "a",
        {
            "initContainers": [container("prepare", resources=wants)],
            "containers": [container("app", resources={"limits": {GPU: 1}})],
        },
        annotations={"runtime.kubengine.dev/exit-after.prepare": "10ms"},
    )
    await eventually(lambda: rig.running("a"))
    assert rig.gpus("a", "prepare") == ["gpu-0", "gpu-1", "gpu-2"]
    assert rig.gpus("a") == ["gpu-0"]
    assert await rig.listed() == {"a-n1": ["gpu-0"]}
    state = rig.node.components["devices"].state
    assert state.allocated() == {GPU: 1}
