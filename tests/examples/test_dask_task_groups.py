"""Tasks of a real Dask worker in cgroups of their own, on this machine's hierarchies."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.cgroups.manager import CgroupManager
from tests.examples.loading import example

pytest.importorskip("distributed")
pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

groups = example("dask_task_groups")
MI = 1 << 20


@pytest.fixture
def manager(private_cgroup_root: str) -> Iterator[CgroupManager]:
    made = groups.cgroup_manager("256Mi", 2, root=private_cgroup_root)
    yield made
    made.remove_all(kill=True, wait=5.0)
    made.stop()


def executor(manager: CgroupManager, **options: Any) -> Any:
    return groups.TaskGroups(manager, **{"budget": "256Mi", "task": "64Mi", "cpu": "500m", **options})


def hold(mebibytes: int, seconds: float = 0.0) -> int:
    data = bytearray(mebibytes << 20)
    for offset in range(0, len(data), 4096):
        data[offset] = 1
    time.sleep(seconds)
    return len(data)


def own_cgroups() -> str:
    return Path("/proc/self/cgroup").read_text()


def divide(number: int) -> float:
    return 1 / number


@pytest.fixture
async def client(manager: CgroupManager) -> AsyncIterator[Any]:
    """Yield a client of a cluster with one worker, whose tasks run in cgroups."""
    from distributed import Client, Scheduler, Worker

    async with (
        Scheduler(port=0, dashboard_address=None, host="127.0.0.1") as scheduler,
        Worker(
            scheduler.address, nthreads=2, executor={"default": executor(manager, threads=2)}, memory_limit=0
        ),
        Client(scheduler.address, asynchronous=True) as connected,
    ):
        yield connected


async def test_a_workers_tasks_run_in_groups_of_their_own_and_die_alone(
    client: Any, manager: CgroupManager, private_cgroup_root: str
) -> None:
    assert private_cgroup_root in await client.submit(own_cgroups)
    assert await client.submit(hold, 16) == 16 * MI
    greedy, modest = client.submit(hold, 250, retries=0), client.submit(hold, 8, pure=False)
    assert await modest == 8 * MI
    with pytest.raises(groups.TaskOutOfMemory, match="killed at its memory limit of 128 MiB"):
        await greedy
    with pytest.raises(ZeroDivisionError):
        await client.submit(divide, 0)
    assert await client.submit(divide, 2) == 0.5
    assert manager.existing_pods() == {}


def test_the_task_furthest_above_its_request_is_evicted_under_pressure(manager: CgroupManager) -> None:
    # A task holds 46 MiB before it begins. Both together exceed 179 MiB only once the greedy one exceeds its
    # request, which the modest one never does.
    with executor(manager, threads=3, task="96Mi", limit="200Mi", pressure=0.7, seconds=0.05) as tasks:
        modest = tasks.submit(hold, 20, 60.0)
        greedy = tasks.submit(hold, 110, 60.0)
        with pytest.raises(groups.TaskEvicted, match=r"of 179 MiB .*uses \d+ bytes more than it requests"):
            greedy.result(timeout=60)
        assert not modest.done()


def test_its_group_has_the_values_of_a_pod(manager: CgroupManager) -> None:
    with executor(manager) as tasks:
        running = tasks.submit(hold, 1, 60.0)
        while not tasks._tasks:
            time.sleep(0.01)
        (task,) = tasks._tasks.values()
        limits = {1: "memory.limit_in_bytes", 2: "memory.max"}
        file = manager.mounts.directory("memory", task.path) / limits[manager.mounts.version]
        assert int(file.read_text()) == 128 * MI
    assert running.done()
