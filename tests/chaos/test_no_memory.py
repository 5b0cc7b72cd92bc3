"""Leave no memory to an agent: the kernel kills it at its cgroup's limit, or its allocations fail.

It ends or goes on, its pods stay as they are, and with memory it works again. `KUBENGINE_MEMORY_SQUEEZES`
sets the number of rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.conftest import MakeMember, Member, meanwhile, repetitions
from tests.cluster_rig import PODS, Cluster
from tests.node_rig import container
from tests.waiting import eventually

SQUEEZES = repetitions("KUBENGINE_MEMORY_SQUEEZES", 2)
MEMORY = Path("/sys/fs/cgroup/memory")
PLENTY = 1 << 32
SQUEEZED_SECONDS = 5.0
MUCH = 700_000
"""Bytes of an object that comes from the server: more than a heap has ready."""
ENTER = 'echo $$ >"$0/cgroup.procs"; exec "$@"'


class Group:
    """Limit the memory of a cgroup (v1 or v2), and read its use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        v1 = (path / "memory.limit_in_bytes").exists()
        self._limit = path / ("memory.limit_in_bytes" if v1 else "memory.max")
        self._usage = path / ("memory.usage_in_bytes" if v1 else "memory.current")

    def usage(self) -> int:
        return int(self._usage.read_text())

    def limit(self, size: int) -> None:
        self._limit.write_text(str(size))

    def squeeze(self) -> None:
        """Set the limit to the memory in use that cannot be reclaimed; cgroup v1 refuses a lower one."""
        used = self.usage()
        for percent in range(20, 101, 2):
            with contextlib.suppress(OSError):
                self.limit(used * percent // 100)
                return


@contextmanager
def group() -> Iterator[Group]:
    parent = MEMORY if MEMORY.is_dir() else MEMORY.parent
    path = parent / f"kubengine-{os.getpid()}-squeezed"
    path.mkdir()
    try:
        found = Group(path)
        if not found._limit.exists():
            pytest.skip("no memory controller in this machine's cgroups")
        yield found
    finally:
        path.rmdir()


async def recreate_pod(cluster: Cluster) -> None:
    """Create and delete a large pod again and again, so that the agent has work."""
    while True:
        with contextlib.suppress(Exception):
            big = {"name": "busy", "annotations": {"big": "x" * MUCH}}
            spec = {"nodeName": "n1", "containers": [container()]}
            cluster.server.create(PODS, {"metadata": big, "spec": spec})
        await asyncio.sleep(0.3)
        with contextlib.suppress(Exception):
            await cluster.delete("busy", grace=0)
        await asyncio.sleep(0.2)


async def squeeze_and_relieve(node: Member, squeeze: Callable[[], None], relieve: Callable[[], None]) -> None:
    """Squeeze and relieve the agent under work, and start it again if it did not survive."""
    async with meanwhile(recreate_pod(node.cluster)):
        squeeze()
        with contextlib.suppress(AssertionError):
            await eventually(lambda: node.agent.status is not None, SQUEEZED_SECONDS)
        relieve()
    if node.agent.status is not None:
        await node.agent.start()
    await node.wait_for_renewals()


class SteadyPods:
    """Run two pods, and check that their containers stay ready without a restart."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._ids: dict[str, str] = {}

    async def run(self) -> None:
        for name in ("a", "b"):
            await self._node.cluster.run(name, containers=[container()])
            await self._node.cluster.ready(name)
            self._ids[name] = (await self._node.container(name))["containerID"]

    async def check(self) -> None:
        for name, id in self._ids.items():
            status = await self._node.container(name)
            assert (status["containerID"], status["restartCount"], status["ready"]) == (id, 0, True)


async def check_work(node: Member, number: int) -> None:
    name = f"later-{number}"
    await node.cluster.run(name, containers=[container()])
    await node.cluster.ready(name)
    await node.cluster.delete(name)
    await node.cluster.gone(name)


@pytest.mark.root
async def test_a_limit_that_the_kernel_enforces(member: MakeMember) -> None:
    with group() as limited:
        async with member(within=["sh", "-c", ENTER, str(limited.path)]) as node:
            steady = SteadyPods(node)
            await steady.run()
            for number in range(SQUEEZES):
                await squeeze_and_relieve(node, limited.squeeze, lambda: limited.limit(PLENTY))
                await steady.check()
                await check_work(node, number)
        await eventually(lambda: not (limited.path / "cgroup.procs").read_text())


async def test_allocations_that_fail(member: MakeMember) -> None:
    chance = random.Random(SQUEEZES)
    async with member() as node:
        steady = SteadyPods(node)
        await steady.run()
        for number in range(SQUEEZES):
            found = re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{node.agent.pid}/status").read_text())
            assert found is not None
            size = int(int(found[1]) * 1024 + chance.choice((0, 1 << 16, 1 << 20)))
            pid = node.agent.pid

            def squeeze(size: int = size, pid: int = pid) -> None:
                resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

            def relieve(pid: int = pid) -> None:
                if node.agent.status is None:
                    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                    resource.prlimit(pid, resource.RLIMIT_AS, unlimited)

            await squeeze_and_relieve(node, squeeze, relieve)
            await steady.check()
            await check_work(node, number)
