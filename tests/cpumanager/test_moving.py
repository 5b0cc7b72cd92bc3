"""Containers move to their CPUs, whatever fails meanwhile, and are forgotten when their pods are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.cpumanager.moving import ContainerMover, RunningContainer
from engine.host.tasks import Tasks
from tests.cpumanager.rig import Rig, pinned_pod, settled


def mover_of(
    wanted: dict[str, str], move: Callable[[str, str], Awaitable[None]], *, period: float = 3600.0
) -> ContainerMover:
    """Return a mover of running containers, one in each pod, with the CPUs that they should have."""
    return ContainerMover(
        lambda pod_uid, container: wanted[pod_uid],
        lambda: [RunningContainer(uid, "c", uid) for uid in wanted],
        move,
        prepare=lambda: None,
        period=period,
        tasks=Tasks(),
    )


async def test_an_unexpected_failure_delays_a_move_only_shortly(caplog: pytest.LogCaptureFixture) -> None:
    moved: list[str] = []

    async def move(container: str, cpus: str) -> None:
        if not moved:
            moved.append("failed")
            raise ValueError("unexpected")
        moved.append(cpus)

    mover = mover_of({"a": "0-3"}, move)
    mover.start()
    try:
        await asyncio.wait_for(mover.wait_done(), 10)
    finally:
        await mover.stop()
    assert moved == ["failed", "0-3"]
    assert "cpu-manager failed and will be retried" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
async def test_a_container_that_also_gains_cpus_leaves_those_of_others_first(fails: bool) -> None:
    """The pool may grow by the CPUs of a pod that ended while another pod's container takes one from it."""
    moved: list[tuple[str, str]] = []
    refused: set[str] = set()

    async def move(container: str, cpus: str) -> None:
        if container in refused:
            raise Refused("the runtime is busy")
        moved.append((container, cpus))

    wanted = {"grows": "1,5", "shared": "0,3-4,7"}
    mover = mover_of(wanted, move)
    mover.start()
    try:
        await asyncio.wait_for(mover.wait_done(), 10)
        moved.clear()
        refused.update({"shared"} if fails else ())
        wanted.update(grows="1,4-5", shared="0,2-3,6-7")
        mover.changed()
        if fails:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(mover.wait_done(), 0.2)
            assert not moved
        else:
            await asyncio.wait_for(mover.wait_done(), 10)
            assert moved == [("shared", "0,2-3,6-7"), ("grows", "1,4-5")]
    finally:
        await mover.stop()


async def test_containers_that_exchange_cpus_do_not_wait_for_each_other() -> None:
    moved: dict[str, str] = {}

    async def move(container: str, cpus: str) -> None:
        moved[container] = cpus

    wanted = {"a": "1", "b": "2"}
    mover = mover_of(wanted, move)
    mover.start()
    try:
        await asyncio.wait_for(mover.wait_done(), 10)
        wanted.update(a="2", b="1")
        mover.changed()
        await asyncio.wait_for(mover.wait_done(), 10)
        assert moved == wanted
    finally:
        await mover.stop()


async def test_a_container_that_refuses_is_tried_once_in_each_period() -> None:
    """However often something else changes meanwhile."""
    tried = 0

    async def move(container: str, cpus: str) -> None:
        nonlocal tried
        tried += 1
        raise Refused("the runtime is busy")

    mover = mover_of({"a": "0-3"}, move, period=0.5)
    mover.start()
    try:
        while tried < 200:
            mover.wake()
            await asyncio.sleep(0)
        await asyncio.sleep(0.6)
        tried = 0
        await asyncio.sleep(1.6)
        assert 1 <= tried <= 4
    finally:
        await mover.stop()


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
