"""devices, cpus and cgroups answer as a live agent acts: the planner reads its socket and is asked, and then
the agent gets the pods. Its machine has 16 CPUs on two NUMA nodes.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine.cpumanager.topology import CpuTopology, Processor
from engine.plan.questions.cgroups import LEVEL_NAMES, CgroupsParameters, cgroups
from engine.plan.questions.cpus import CpusParameters, cpus
from engine.plan.questions.devices import DevicesParameters, devices
from engine.runtime.hollow import HollowRuntime
from engine.topologymanager.policy import Numa
from tests.devices.device_rig import GPU, DeviceRig
from tests.node_rig import container
from tests.plan.live.test_agent import snapshot_of
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
            rig = DeviceRig(Path(short), runtime, max_pods=60, healthz_port=0, read_only_port=0)
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


@pytest.mark.root
@pytest.mark.parametrize("seed", range(4))
async def test_the_agent_writes_the_cgroup_values_that_the_planner_says(
    rig: DeviceRig, private_cgroup_root: str, seed: int
) -> None:
    """The kernel has those of levels and pods, the runtime those of containers."""
    draw = random.Random(seed)
    rig.config.cgroups_per_qos, rig.config.cgroup_root = True, private_cgroup_root
    rig.config.pod_pids_limit = draw.choice([-1, 200])
    rig.config.kube_reserved = {"cpu": f"{draw.randrange(1, 9)}00m", "memory": "64Mi"}
    node = await rig.start()
    for number in range(8):
        resources = {"limits": amounts(draw)} if draw.random() < 0.4 else {"requests": amounts(draw)}
        containers = [container(name, resources=resources) for name in ("a", "b")[: draw.randrange(1, 3)]]
        rig.write(f"p{number}", {"containers": containers}, labels={"app": "web"})
        await eventually(lambda name=f"p{number}": rig.running(name))
    described = cast("Any", node.components["cgroups"]).describe()
    parameters = CgroupsParameters(
        version=described["version"],
        formula=described["cpuWeightFormula"],
        detail=["qos", "pods", "containers"],
    )
    table = cgroups(await snapshot_of(rig), parameters).table.to_pylist()
    foretold = {(row["object"], row["decision"]): row["amount"] for row in table}
    written = {
        (group.get("pod") or LEVEL_NAMES[group["qosClass"]], file): amount_in(texts["actual"])
        for group in described["groups"]
        for file, texts in group["files"].items()
        if not file.startswith("cpuset.")
    }
    assert {(key, amount) for key, amount in foretold.items() if ":" not in key[0]} == set(written.items())
    given = dict(of_containers(rig, described["version"]))
    assert {key: foretold[key] for key in given} == given
    assert len(given) > 8 * 3


def amount_in(text: str) -> int:
    """Return the first number of a cgroup file, -1 for no limit, which cgroup v1 shows as a huge one."""
    first = text.split(maxsplit=1)[0]
    return -1 if first == "max" or int(first) > 2**62 else int(first)


def amounts(draw: random.Random) -> dict[str, str]:
    """Return random amounts of CPU and memory, of one of them, or none."""
    both = {"cpu": f"{draw.randrange(1, 60)}0m", "memory": f"{draw.randrange(8, 200)}Mi"}
    return {name: amount for name, amount in both.items() if draw.random() < 0.7}


def of_containers(rig: DeviceRig, version: int) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield what the runtime received for each container, under the planner's names."""
    for record in rig.runtime.service.records.containers.values():
        pod, linux = record.sandbox.config.metadata, record.config.linux.resources
        name = f"{pod.namespace}/{pod.name}:{record.config.metadata.name}"
        if version == 1:
            yield (name, "cpu.shares"), linux.cpu_shares
        yield (name, "cpu.quota"), linux.cpu_quota or -1
        yield (name, "memory.max"), linux.memory_limit_in_bytes or -1
        yield (name, "oom_score_adj"), linux.oom_score_adj
