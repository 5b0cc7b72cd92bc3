"""kill -9 at every step of an allocation: nothing that runs loses its device, and none leaks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"
STEPS = ["chosen", "allocated", "recorded", "checkpoint written", "checkpoint renamed", "durable", "never"]


CASES = [pytest.param(step, True, id=f"{step.replace(' ', '-')}-pod-remains") for step in STEPS]
CASES += [
    pytest.param(step, False, id=f"{step.replace(' ', '-')}-pod-gone") for step in ("recorded", "durable")
]


@pytest.mark.parametrize(("step", "victim_remains"), CASES)
async def test_a_crash_loses_and_leaks_nothing(agent, step, victim_remains):
    plugin = await agent.plugin(count=2)
    holder = await agent.admit(agent.make_pod("holder"))
    assert agent.devices(holder) == ["gpu-0"]
    await agent.stop_manager()
    plugin.follow(agent.plugin_dir)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("killed_agent.py")),
        str(agent.directory),
        step,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await child.communicate()
    assert child.returncode == -9
    started = output == b"started\n"
    assert started == (step == "never")

    victim = agent.make_pod("victim")
    agent.pods = [holder, victim] if victim_remains else [holder]
    agent.running = {(holder.uid, "app")} | ({(victim.uid, "app")} if started else set())
    agent.ready = False
    await agent.start()
    recorded = agent.devices(victim)
    assert agent.devices(holder) == ["gpu-0"]
    if step in ("checkpoint renamed", "durable", "never"):
        assert recorded == ["gpu-1"], "what reached the disk is remembered"
    await eventually(lambda: agent.counts() == (2, 2))
    agent.ready = True
    if victim_remains:
        await agent.manager.allocate(victim)
        assert agent.devices(victim) == ["gpu-1"]
        assert agent.manager.state.allocated() == {GPU: 2}
    agent.pods = [holder]
    newcomer = await agent.admit(agent.make_pod("newcomer"))
    assert agent.devices(newcomer) == ["gpu-1"], "the crash leaked no device"
    assert agent.devices(holder) == ["gpu-0"]
    await agent.manager.allocate(holder)
    assert agent.manager.state.allocated() == {GPU: 2}
