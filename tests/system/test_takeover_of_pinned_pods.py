"""A real kubelet and this agent one after the other with static policies: no pinned container moves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.api.config import MemoryReservation
from engine.api.quantity import Quantity
from engine.testing.containerd import Containerd
from tests.node_rig import Rig
from tests.system.busybox import container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import eventually

pytestmark = [
    pytest.mark.containerd,
    pytest.mark.root,
    pytest.mark.slow,
    needs_kubelet,
    pytest.mark.skipif((os.cpu_count() or 0) < 2, reason="exclusive CPUs need two CPUs"),
    pytest.mark.skipif(not Path("/sys/fs/cgroup/cpuset").is_dir(), reason="reads cgroup v1's cpuset files"),
]

PODS = {
    "alone": {"containers": [container(resources={"limits": {"cpu": "1", "memory": "64Mi"}})]},
    "shared": {"containers": [container()]},
}
STATE = ("cpu_manager_state", "memory_manager_state")


@pytest.fixture
async def kubelet(rig: Rig, containerd: Containerd, tmp_path: Path) -> AsyncIterator[Kubelet]:
    rig.config.cpu_manager_policy = "static"
    rig.config.reserved_system_cpus = "0"
    rig.config.memory_manager_policy = "Static"
    rig.config.system_reserved = {"memory": "64Mi"}
    rig.config.reserved_memory = [MemoryReservation(0, {"memory": Quantity.parse("64Mi")})]
    rig.config.topology_manager_policy = "single-numa-node"
    kubelet = Kubelet(
        tmp_path,
        containerd.socket,
        manifests=rig.manifests,
        root=rig.root,
        cgroup_root=rig.config.cgroup_root,
        more={
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
            "memoryManagerPolicy": "Static",
            "systemReserved": {"memory": "64Mi"},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
            "topologyManagerPolicy": "single-numa-node",
        },
    )
    kubelet.share_root()
    yield kubelet
    kubelet.close()


def placed(rig: Rig) -> dict[str, tuple[str, str]]:
    """(cpuset.cpus, cpuset.mems) of each container's cgroup, by its path."""
    root = Path("/sys/fs/cgroup/cpuset") / rig.config.cgroup_root.lstrip("/") / "kubepods"
    return {
        str(path.parent.relative_to(root)): (path.read_text(), (path.parent / "cpuset.mems").read_text())
        for path in root.rglob("cpuset.cpus")
        if len(path.parent.name) == 64
    }


def state(rig: Rig) -> list[bytes]:
    return [(rig.root / name).read_bytes() for name in STATE]


async def test_kubelet_us_kubelet_us(rig: Rig, kubelet: Kubelet) -> None:
    for name, spec in PODS.items():
        rig.write(name, spec)
    kubelet.start()
    await eventually(lambda: kubelet.phases() == dict.fromkeys(PODS, "Running"))
    await eventually(lambda: any(cpus.strip() == "1" for cpus, _ in placed(rig).values()))
    await eventually(lambda: any(cpus.strip() == "0" for cpus, _ in placed(rig).values()), 60)
    kubelet.stop()
    before = placed(rig), state(rig)

    await rig.start()
    await eventually(lambda: all(rig.phase(name) == "Running" for name in PODS))
    assert (placed(rig), state(rig)) == before
    assert "CPUManagerStateChanged" not in rig.reasons()
    await rig.stop()
    assert (placed(rig), state(rig)) == before

    kubelet.start()
    await eventually(lambda: kubelet.phases() == dict.fromkeys(PODS, "Running"))
    assert (placed(rig), state(rig)) == before
    kubelet.stop()

    await rig.start()
    await eventually(lambda: all(rig.phase(name) == "Running" for name in PODS))
    assert (placed(rig), state(rig)) == before
