"""Let the wall clock of an agent jump by hours, forward and back, and run too fast and too slowly.

A real agent sees a time of its own (`set_clock.c`): the cluster, its runtime and its plugins have the right
one. `KUBENGINE_CLOCK_JUMPS` sets the number of jumps.
"""

from __future__ import annotations

import mmap
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.runtime.hollow import PREFIX
from engine.testing.device_plugin import SampleDevicePlugin
from tests.chaos.conftest import NODE, MakeMember, Member, repetitions
from tests.cluster_rig import PODS, Object, condition
from tests.node_rig import container
from tests.waiting import eventually

JUMPS = repetitions("KUBENGINE_CLOCK_JUMPS", 3)
GPU = "example.com/gpu"
HOUR = 3600.0
FASTER = 500_000_000
"""Nanoseconds a second; an NTP daemon slews by half a million at most."""


class Clock:
    """Set the agent's wall clock through a file that the agent's library maps."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(24))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 24)

    def set(self, *, hours: float = 0.0, slew: int = 0) -> None:
        self._map[:] = struct.pack("qqq", int(hours * HOUR * 1e9), time.monotonic_ns(), slew)

    def close(self) -> None:
        self._map.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: the clock is one of the test's own")
    built = tmp_path_factory.mktemp("clock") / "set_clock.so"
    source = Path(__file__).with_name("set_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source], check=True)
    return built


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    clock = Clock(tmp_path / "clock")
    yield clock
    clock.close()


@pytest.fixture
def clock_environment(library: Path, clock: Clock, tmp_path: Path) -> dict[str, str]:
    """Return the environment that makes a process use that clock."""
    return {"LD_PRELOAD": str(library), "SET_CLOCK": str(tmp_path / "clock")}


PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 1, "initialDelaySeconds": 1}


async def run_pods(member: Member) -> None:
    """Run a pod that is probed, and one that fails again and again."""
    gpu = {"resources": {"limits": {GPU: "1"}}}
    await member.cluster.run(
        "steady", containers=[container(livenessProbe=PROBE, readinessProbe=PROBE, **gpu)]
    )
    annotations = {f"{PREFIX}exit-after": "50ms", f"{PREFIX}exit-code": "1"}
    member.server.create(
        PODS,
        {
            "metadata": {"name": "failing", "annotations": annotations},
            "spec": {"nodeName": "n1", "restartPolicy": "Always", "containers": [container()]},
        },
    )
    await member.cluster.ready("steady")


def same_container(before: Object, after: Object) -> bool:
    """Tell whether the pod's container is the same, equally ready, and has not been restarted."""
    names = ("containerID", "ready", "restartCount", "state")
    one, other = (pod["status"]["containerStatuses"][0] for pod in (before, after))
    return bool([one[name] for name in names] == [other[name] for name in names])


async def wait_for_all_work(member: Member) -> None:
    """Wait for another lease renewal, heartbeat, probe and restart."""
    reports, probed = member.reports, member.probed
    restarts = (await member.container("failing"))["restartCount"]
    await member.wait_for_renewals()
    await eventually(lambda: member.reports > reports)
    await eventually(lambda: member.probed > probed + 1)

    async def restarted() -> bool:
        return bool((await member.container("failing"))["restartCount"] > restarts)

    await eventually(restarted)


async def test_a_clock_that_jumps_by_hours(
    member: MakeMember, clock: Clock, clock_environment: dict[str, str]
) -> None:
    chance = random.Random(JUMPS)
    jumps = [6.0, -12.0, 0.0, *(chance.uniform(-200, 200) for _ in range(JUMPS))][:JUMPS]
    async with member(environment=clock_environment) as node:
        plugins = node.agent.root / "device-plugins"
        await eventually(plugins.exists)
        plugin = SampleDevicePlugin(GPU, plugins / "gpu.sock", count=2)
        await plugin.start()
        try:
            await plugin.register(plugins)
            await eventually(lambda: node.node()["status"].get("allocatable", {}).get(GPU) == "2")
            await run_pods(node)
            pod = await node.cluster.pod("steady")
            assert pod is not None
            await wait_for_all_work(node)
            since = condition(node.node(), "Ready")["lastTransitionTime"]
            for hours in jumps:
                before = len(node.server.requests)
                renewals = node.renewals
                await plugin.stop()
                clock.set(hours=hours)
                await wait_for_all_work(node)
                await plugin.start()
                await plugin.register(plugins)
                await eventually(lambda: node.node()["status"].get("allocatable", {}).get(GPU) == "2")
                assert node.node()["status"]["capacity"][GPU] == "2", "a plugin has five minutes to return"
                asked = len(node.server.requests) - before
                assert asked < 200 + 20 * (node.renewals - renewals), "a jump is no reason to ask for ever"
                await node.cluster.run("late", containers=[container()])
                await node.cluster.ready("late")
                await node.cluster.delete("late")
                await node.cluster.gone("late")
            now = await node.cluster.pod("steady")
            assert now is not None
            assert same_container(pod, now)
            assert condition(now, "Ready") == condition(pod, "Ready"), "no transition, no time of one"
            assert condition(node.node(), "Ready")["lastTransitionTime"] == since
            assert node.unready() == []
        finally:
            await plugin.stop()


async def test_a_clock_that_runs_too_fast_and_too_slowly(
    member: MakeMember, clock: Clock, clock_environment: dict[str, str]
) -> None:
    async with member(environment=clock_environment) as node:
        await node.cluster.run("p", containers=[container(readinessProbe=PROBE)])
        pod = await node.cluster.ready("p")
        for slew in (FASTER, -FASTER, 0):
            clock.set(slew=slew)
            await node.wait_for_renewals()
        now = await node.cluster.pod("p")
        assert now is not None
        assert same_container(pod, now)
        assert node.unready() == []


async def test_certificates_are_good_again_once_the_clock_is(
    member: MakeMember, clock: Clock, clock_environment: dict[str, str]
) -> None:
    """Keep pods while the clock is set back by years, and the server's certificate is not yet valid."""
    async with member(environment=clock_environment) as node:
        await node.cluster.run("p", containers=[container()])
        pod = await node.cluster.ready("p")
        clock.set(hours=-3 * 365 * 24)
        node.server.disconnect("system:node:n1")
        await eventually(lambda: "certificate is not yet valid" in node.agent.log())
        clock.set()
        await node.wait_for_renewals()
        now = await node.cluster.pod("p")
        assert now is not None
        assert same_container(pod, now)
        assert node.server.get(NODE)
