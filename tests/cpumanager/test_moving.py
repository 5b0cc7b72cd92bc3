"""Containers move to their CPUs, whatever fails meanwhile, and are forgotten when their pods are over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.cpumanager.moving import ContainerMover, RunningContainer
from engine.host.tasks import Tasks
from tests.cpumanager.rig import Rig, pinned_pod, settled


async def test_an_unexpected_failure_delays_a_move_only_shortly(caplog: pytest.LogCaptureFixture) -> None:
    moved: list[str] = []

    async def move(container: str, cpus: str) -> None:
        if not moved:
            moved.append("failed")
            raise ValueError("unexpected")
        moved.append(cpus)

    mover = ContainerMover(
        lambda pod_uid, container: "0-3",
        lambda: [RunningContainer("a", "c", "id")],
        move,
        prepare=lambda: None,
        period=3600.0,
        tasks=Tasks(),
    )
    mover.start()
    try:
        await asyncio.wait_for(mover.wait_done(), 10)
    finally:
        await mover.stop()
    assert moved == ["failed", "0-3"]
    assert "cpu-manager failed and will be retried" in caplog.text


async def test_containers_that_nobody_saw_running_are_forgotten_with_their_pods(tmp_path: Path) -> None:
    """Thousands of short jobs come and go in the life of an agent."""
    rig = Rig(tmp_path)
    async with rig.agent() as manager:
        for number in range(3):
            job = pinned_pod(f"job{number}", 1)
            assert manager.cpuset(job, "c") == "0-7"
            manager.release(job.uid)
        await settled(manager)
        assert not manager._mover._created
