"""`kubengine device-plugin` as a process, and `kubengine devices` against a server that asks the manager."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from engine.api.errors import InvalidInput
from engine.server import HttpServer
from tests.server.served import View
from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"


async def kubengine(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.cli", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={"COLUMNS": "200"},
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_the_sample_plugin_follows_an_agent_through_restarts(agent):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.cli", "device-plugin", "--resource", GPU, "--count", "8", "--numa", "2",
        "--plugin-dir", str(agent.plugin_dir),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await eventually(lambda: agent.counts() == (8, 8))
        pod = await agent.admit(agent.make_pod("a"))
        await agent.restart()
        await eventually(lambda: agent.counts() == (8, 8))
        assert agent.devices(pod) == ["gpu-0"]
        assert agent.manager.state.resources[GPU].inventory.nodes_of("gpu-7") == (1,)
    finally:
        process.terminate()
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().startswith("example.com/gpu: 8 devices at ")
    await eventually(lambda: agent.counts() == (8, 0))


async def test_an_unknown_fault_is_named():
    status, _, errors = await kubengine("device-plugin", "--resource", GPU, "--fault", "tired")
    assert status == 2
    assert "'tired' is not a valid DevicePluginFault; known are options-fail, " in errors


async def test_devices_are_shown_and_explained(agent, tmp_path):
    await agent.plugin(count=2, numa=2)
    await agent.admit(agent.make_pod("trainer"))
    path = tmp_path / "k.sock"
    room = SimpleNamespace(describe=agent.manager.describe)
    server = HttpServer(View(components={"devices": room}), socket_path=path)
    await server.start()
    try:
        status, shown, errors = await kubengine("devices", "--agent", str(path))
        assert (status, errors) == (0, "")
        assert "example.com/gpu  2         2            1          connected" in shown
        assert "gpu-0   Healthy  0     default/trainer  app" in shown
        status, shown, _ = await kubengine("devices", "--agent", str(path), "--explain", "default/trainer")
        assert shown == "app: example.com/gpu gpu-0\n  gpu-0: lowest free id\n"
        status, _, errors = await kubengine("devices", "--agent", str(path), "--resource", "a/b")
        assert status == 1
        assert "no resource 'a/b'" in errors
    finally:
        await server.stop()


def test_questions_about_unknown_pods_are_refused(agent):
    with pytest.raises(InvalidInput, match="no pod 'nobody'"):
        agent.manager.describe(explain="nobody")
