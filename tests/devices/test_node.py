"""Devices on a whole node: manifests in, containers out, agents and plugins restarted under running pods."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.api.kubengine_config import DevicesSection
from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import Fault
from tests.devices.device_bench import GPU, DeviceBench
from tests.node_bench import container
from tests.waiting import eventually


@pytest.fixture
async def bench() -> AsyncIterator[DeviceBench]:
    with tempfile.TemporaryDirectory(prefix="kd-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            bench = DeviceBench(Path(short), runtime)
            await bench.start()
            yield bench
            await bench.close()


async def test_a_manifest_s_container_gets_its_device(bench, tmp_path):
    await bench.plugin(2, mount=tmp_path, cdi=True)
    bench.wants("a")
    await eventually(lambda: bench.running("a"))
    config = bench.config_of("a")
    assert bench.gpus("a") == ["gpu-0"]
    assert ("/dev/gpu-0", "/dev/null") in {(d.container_path, d.host_path) for d in config.devices}
    assert ("/gpu", str(tmp_path), True) in {
        (m.container_path, m.host_path, m.readonly) for m in config.mounts
    }
    assert [d.name for d in config.CDI_devices] == ["example.com/gpu=gpu-0"]
    assert config.annotations["devices.example.com.gpu"] == "gpu-0"
    assert await bench.listed() == {"a-n1": ["gpu-0"]}


async def test_devices_survive_container_agent_and_plugin_restarts(bench):
    plugin = await bench.plugin(3)
    bench.wants("a")
    await eventually(lambda: bench.running("a"))
    bench.wants("b")
    await eventually(lambda: bench.running("b"))
    expected = {"a-n1": ["gpu-0"], "b-n1": ["gpu-1"]}
    uid = bench.pod("b").uid

    first = bench.config_of("b").metadata.attempt
    (id,) = [
        i for i, c in bench.runtime.service.records.containers.items() if c.sandbox.config.metadata.uid == uid
    ]
    bench.runtime.end_container(id, exit_code=0)
    await eventually(lambda: bench.config_of("b").metadata.attempt > first and bench.running("b"))
    assert bench.gpus("b") == ["gpu-1"]

    await bench.restart()
    await eventually(lambda: bench.running("a", "b") and bench.allocatable() == 3)
    assert await bench.listed() == expected
    assert bench.pod("b").uid == uid

    await plugin.stop()
    await eventually(lambda: bench.allocatable() == 0)
    await plugin.start()
    plugin.follow(bench.plugin_dir)
    await eventually(lambda: bench.allocatable() == 3)
    assert await bench.listed() == expected

    await plugin.stop()
    await bench.restart()
    await plugin.start()
    plugin.follow(bench.plugin_dir)
    await eventually(lambda: bench.running("a", "b") and bench.allocatable() == 3)
    assert await bench.listed() == expected
    bench.wants("c")
    await eventually(lambda: bench.running("c"))
    assert bench.gpus("c") == ["gpu-2"]


async def test_a_pod_deleted_while_the_agent_was_down_leaves_its_device(bench):
    await bench.plugin(1)
    bench.wants("gone")
    await eventually(lambda: bench.running("gone"))
    await bench.node.stop()
    (bench.manifests / "gone.yaml").unlink()
    await bench.start()
    await eventually(lambda: bench.allocatable() == 1 and bench.pod("gone") is None)
    bench.wants("next")
    await eventually(lambda: bench.running("next"))
    assert bench.gpus("next") == ["gpu-0"]


async def test_a_pod_whose_plugin_fails_is_refused_and_the_next_is_served(bench):
    plugin = await bench.plugin(1)
    await plugin.fail_with(Fault.ALLOCATE_FAILS)
    bench.wants("unlucky")
    await eventually(lambda: bench.phase("unlucky") == "Failed")
    status = bench.pod("unlucky").status
    assert status.reason == "UnexpectedAdmissionError"
    assert "told to fail" in status.message
    await plugin.fail_with()
    bench.wants("lucky")
    await eventually(lambda: bench.running("lucky"))
    assert bench.gpus("lucky") == ["gpu-0"]


async def test_a_pod_waits_for_its_plugin_when_told_to(bench):
    plugin = await bench.plugin(1)
    await plugin.stop()
    await bench.node.stop()
    bench.section.devices = DevicesSection(admission_retry=30)
    await bench.start()
    bench.wants("patient")
    await asyncio.sleep(0.3)
    assert not bench.running("patient")
    await plugin.start()
    plugin.follow(bench.plugin_dir)
    await eventually(lambda: bench.running("patient"))
    assert bench.gpus("patient") == ["gpu-0"]


async def test_init_surplus_is_for_others_once_the_apps_run(bench):
    await bench.node.stop()
    bench.section.devices = DevicesSection(release_init_surplus=True)
    await bench.start()
    await bench.plugin(3)
    wants = {"limits": {GPU: 3}}
    bench.write(
        "a",
        {
            "initContainers": [container("prepare", resources=wants)],
            "containers": [container("app", resources={"limits": {GPU: 1}})],
        },
        annotations={"runtime.kubengine.dev/exit-after.prepare": "10ms"},
    )
    await eventually(lambda: bench.running("a"))
    assert bench.gpus("a", "prepare") == ["gpu-0", "gpu-1", "gpu-2"]
    assert bench.gpus("a") == ["gpu-0"]
    assert await bench.listed() == {"a-n1": ["gpu-0"]}
    state = bench.node.rooms["devices"].state
    assert state.allocated() == {GPU: 1}
