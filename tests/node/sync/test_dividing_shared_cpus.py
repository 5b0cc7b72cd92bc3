"""A node with pools of CPUs for Burstable pods, on a machine of eight CPUs that exists for the agent only."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CpuPool, CpusSection
from engine.cpumanager.topology import CpuTopology, Processor
from engine.runtime.hollow import HollowRuntime
from engine.testing.dra_driver import SampleDraDriver
from tests.node.sync.test_resizing_pinned_pods import cpuset
from tests.node_rig import Rig, container
from tests.waiting import eventually

TOPOLOGY = CpuTopology([Processor(cpu, cpu % 4, cpu % 4 // 2, 0, 0) for cpu in range(8)])


@pytest.fixture
def divided(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a node of 8 CPUs with a pool for pods with the label pool=web."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("engine.node.pinning.read_topology", lambda: TOPOLOGY)
    monkeypatch.setattr("engine.node.pinning.online_cpus", lambda: TOPOLOGY.cpus)
    rig.config.cpu_manager_policy = "static"
    rig.config.reserved_system_cpus = "0"
    rig.section.cpus = CpusSection(pools=[CpuPool("web", labels={"pool": "web"})])
    return rig


def write(rig: Rig, name: str, pool: str, cpu: str) -> None:
    spec = {"containers": [container(resources={"requests": {"cpu": cpu}})]}
    rig.write(name, spec, labels={"pool": pool})


async def test_a_pool_follows_its_pods(divided: Rig, hollow: HollowRuntime) -> None:
    rig = divided
    await rig.start()
    write(rig, "other", "none", "100m")
    await eventually(lambda: cpuset(rig, hollow, "other") == "0-7")
    write(rig, "a", "web", "1500m")
    await eventually(lambda: cpuset(rig, hollow, "a") == "1,5")
    await eventually(lambda: cpuset(rig, hollow, "other") == "0,2-4,6-7")
    write(rig, "b", "web", "1")
    await eventually(lambda: cpuset(rig, hollow, "b") == cpuset(rig, hollow, "a") != "1,5")
    (rig.manifests / "b.yaml").unlink()
    await eventually(lambda: len(cpuset(rig, hollow, "a").split(",")) == 2)


async def test_pools_sized_by_use_need_cgroups(divided: Rig) -> None:
    divided.section.cpus = CpusSection(pools=[CpuPool("web", labels={"pool": "web"}, sized_by="use")])
    with pytest.raises(InvalidInput, match=r"cpus\.pools: sizedBy: use needs the pods' cgroups"):
        await divided.start()


async def test_pools_need_the_static_policy(divided: Rig) -> None:
    divided.config.cpu_manager_policy = "none"
    with pytest.raises(InvalidInput, match="cpus: needs cpuManagerPolicy: static"):
        await divided.start()


async def test_a_driver_of_cpus_is_reported(divided: Rig, tmp_path: Path) -> None:
    await divided.start()
    driver = SampleDraDriver(tmp_path / "driver", divided.root / "plugins_registry", "dra.cpu")
    await driver.start()
    try:
        await eventually(lambda: "CPUDriverClash" in divided.reasons())
    finally:
        await driver.stop()
