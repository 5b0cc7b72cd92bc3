"""devices, cpus and cgroups answer as a live agent acts: the planner reads its socket and is asked, and then
the agent gets the pods. Its machine has 16 CPUs on two NUMA nodes.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cpumanager.topology import CpuTopology, Processor
from engine.plan.questions.cpus import CpusParameters, cpus
from engine.plan.questions.devices import DevicesParameters, devices
from engine.runtime.hollow import HollowRuntime
from engine.topologymanager.policy import Numa
from tests.devices.device_rig import GPU, DeviceRig
from tests.node_rig import container
from tests.plan.test_live_agent import snapshot_of
from tests.waiting import eventually

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
TOPOLOGY = CpuTopology(
    [Processor(cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16)]
)
"""Eight cores of two threads (0 and 8, 1 and 9, …), four on each NUMA node."""


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DeviceRig]:
    monkeypatch.setattr("os.cpu_count", lambda: len(TOPOLOGY.processors))
    monkeypatch.setattr("engine.node.pinning.read_topology", lambda: TOPOLOGY)
    monkeypatch.setattr("engine.node.pinning.online_cpus", lambda: TOPOLOGY.cpus)
    monkeypatch.setattr(Numa, "of_machine", lambda: Numa((0, 1)))
    with tempfile.TemporaryDirectory(prefix="kd-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = DeviceRig(Path(short), runtime, max_pods=60)
            yield rig
            await rig.close()


async def runs(rig: DeviceRig, name: str, **limits: Any) -> bool:
    """Give the agent a pod with these limits; tell whether it admits it."""
    rig.write(name, {"containers": [container("app", resources={"limits": limits})]})
    await eventually(lambda: rig.phase(name) in ("Running", "Failed"))
    return rig.phase(name) == "Running"


async def remove(rig: DeviceRig, name: str) -> None:
    (rig.manifests / f"{name}.yaml").unlink()
    await eventually(lambda: rig.pod(name) is None)


async def occupy(rig: DeviceRig, draw: random.Random, resource: str, **limits: str) -> None:
    """Run some pods with up to three of a resource, and remove a third of them again."""
    for number in range(draw.randrange(2, 6)):
        name = f"p{number}"
        if not await runs(rig, name, **limits, **{resource: str(draw.randrange(1, 4))}) or number % 3 == 1:
            await remove(rig, name)


async def admitted(rig: DeviceRig, **limits: Any) -> int:
    """Return how many more pods with these limits the agent admits until it refuses one."""
    count = 0
    while await runs(rig, f"more{count}", **limits):
        count += 1
    return count


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
async def test_the_agent_gives_as_many_devices_as_the_planner_says(
    rig: DeviceRig, policy: str, seed: int
) -> None:
    draw = random.Random(f"{policy} {seed}")
    rig.config.topology_manager_policy = policy
    await rig.start()
    await rig.plugin(10, numa=2)
    await occupy(rig, draw, GPU)
    count = draw.randrange(1, 5)
    answer = devices(await snapshot_of(rig), DevicesParameters(counts=[count], policy=policy))
    free, row = answer.table.to_pylist()
    assert "NUMA 1" in free["reason"]
    fits = row["amount"] if row["decision"] == "fits" else 0
    assert await admitted(rig, **{GPU: count}) == fits


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
async def test_the_agent_takes_as_many_pinned_pods_as_the_planner_says(
    rig: DeviceRig, policy: str, seed: int
) -> None:
    draw = random.Random(f"{policy} {seed}")
    rig.config.topology_manager_policy = policy
    rig.config.cpu_manager_policy = "static"
    rig.config.reserved_system_cpus = "0"
    rig.config.cpu_manager_policy_options = draw.choice([{}, {"full-pcpus-only": "true"}])
    await rig.start()
    await occupy(rig, draw, "cpu", memory="16Mi")
    limits = {"cpu": str(draw.randrange(1, 6)), "memory": "16Mi"}
    rows = cpus(await snapshot_of(rig), CpusParameters(requests=limits, pods=20)).table.to_pylist()
    assert not {"unknown"} & {row["decision"] for row in rows}
    takes = sum(row["amount"] for row in rows if row["decision"] == "takes")
    assert await admitted(rig, **limits) == takes
