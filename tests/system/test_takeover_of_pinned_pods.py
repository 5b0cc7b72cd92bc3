"""A real kubelet and this agent one after the other with static policies: no pinned container moves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EXCLUSIVE_CPUS_GATE, EXCLUSIVE_MEMORY_GATE, KubeletConfiguration
from engine.api.documents import convert
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.testing.containerd import Containerd
from tests.cluster.control_plane import ControlPlane, Object, binaries, shown
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
POLICIES: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "64Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
}
GATES = {EXCLUSIVE_CPUS_GATE: True, EXCLUSIVE_MEMORY_GATE: True}
NAMESPACE = "/api/v1/namespaces/default"
MIB = 1 << 20


@pytest.fixture
def kubelet(rig: Rig, containerd: Containerd, tmp_path: Path) -> Iterator[Kubelet]:
    with prepared_kubelet(rig, containerd, tmp_path) as kubelet:
        yield kubelet


@contextmanager
def prepared_kubelet(
    rig: Rig, containerd: Containerd, directory: Path, gates: Any = None
) -> Iterator[Kubelet]:
    """Yield a kubelet, not started, on the rig's directories and in its cluster.

    Both agents get the same policies and feature gates.
    """
    more = {**POLICIES, "featureGates": gates or {}}
    fields = convert(more, KubeletConfiguration, "configuration")
    for name in ("cpu_manager_policy", "reserved_system_cpus", "memory_manager_policy", "system_reserved",
                 "reserved_memory", "topology_manager_policy", "feature_gates"):  # fmt: skip
        setattr(rig.config, name, getattr(fields, name))
    kubelet = Kubelet(
        directory,
        containerd.socket,
        manifests=rig.manifests,
        root=rig.root,
        cgroup_root=rig.config.cgroup_root,
        more=more,
        kubeconfig=rig.kubeconfig,
    )
    kubelet.share_root()
    try:
        yield kubelet
    finally:
        kubelet.close()


def cpusets(rig: Rig) -> dict[str, tuple[str, str]]:
    """Return (cpuset.cpus, cpuset.mems) of each container's cgroup, by its path."""
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
    await eventually(lambda: any(cpus.strip() == "1" for cpus, _ in cpusets(rig).values()))
    await eventually(lambda: any(cpus.strip() == "0" for cpus, _ in cpusets(rig).values()), 60)
    kubelet.stop()
    before = cpusets(rig), state(rig)

    await rig.start()
    await eventually(lambda: all(rig.phase(name) == "Running" for name in PODS))
    assert (cpusets(rig), state(rig)) == before
    assert "CPUManagerStateChanged" not in rig.reasons()
    await rig.stop()
    assert (cpusets(rig), state(rig)) == before

    kubelet.start()
    await eventually(lambda: kubelet.phases() == dict.fromkeys(PODS, "Running"))
    assert (cpusets(rig), state(rig)) == before
    kubelet.stop()

    await rig.start()
    await eventually(lambda: all(rig.phase(name) == "Running" for name in PODS))
    assert (cpusets(rig), state(rig)) == before


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane"), binaries()) as plane:
        yield plane


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[ApiClient]:
    config = load_kubeconfig(plane.admin)
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
    yield client
    client.close()


async def run(admin: ApiClient) -> None:
    """Create the pods for the node. The server wants their service account, whose controller does not run."""
    try:
        await admin.create(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}}, Object)
    except ApiError as error:
        assert error.reason == "AlreadyExists"  # noqa: PT017
    for name, spec in PODS.items():
        more = {"nodeName": "n1", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
        await admin.create(
            f"{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": {**spec, **more}}, Object
        )


async def resize(admin: ApiClient, memory: str) -> None:
    amounts = {"cpu": "1", "memory": memory}
    wanted = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    await admin.patch(f"{NAMESPACE}/pods/alone/resize", {"spec": {"containers": [wanted]}}, Object)


async def wait_for_memory(admin: ApiClient, memory: str) -> str:
    """Wait until the pinned pod's status shows this memory limit, and return its container's id."""

    def holds(pod: Object) -> bool:
        statuses = pod["status"].get("containerStatuses", [])
        return [one.get("resources", {}).get("limits", {}).get("memory") for one in statuses] == [memory]

    pod = await shown(admin, f"{NAMESPACE}/pods/alone", holds)
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def reserved_bytes(rig: Rig) -> list[int]:
    """Return the bytes of each block in the memory manager's state."""
    entries = json.loads((rig.root / STATE[1]).read_bytes())["entries"]
    return [block["size"] for pod in entries.values() for blocks in pod.values() for block in blocks]


async def test_a_pod_that_either_agent_resized(
    rig: Rig, containerd: Containerd, tmp_path: Path, plane: ControlPlane, admin: ApiClient
) -> None:
    """The kubelet admits the resize and reserves nothing more; here the new amount is reserved."""
    rig.kubeconfig = plane.node
    with prepared_kubelet(rig, containerd, tmp_path, GATES) as kubelet:
        kubelet.start()
        await shown(admin, "/api/v1/nodes/n1", lambda node: True)
        await run(admin)
        await eventually(lambda: kubelet.phases() == dict.fromkeys(PODS, "Running"))
        id = await wait_for_memory(admin, "64Mi")
        await eventually(lambda: any(cpus.strip() == "1" for cpus, _ in cpusets(rig).values()))
        await eventually(lambda: any(cpus.strip() == "0" for cpus, _ in cpusets(rig).values()), 60)
        before = cpusets(rig)
        await resize(admin, "96Mi")
        assert await wait_for_memory(admin, "96Mi") == id
        assert reserved_bytes(rig) == [64 * MIB]
        kubelet.stop()

        await rig.start()
        await eventually(lambda: reserved_bytes(rig) == [96 * MIB])
        assert await wait_for_memory(admin, "96Mi") == id
        await resize(admin, "128Mi")
        assert await wait_for_memory(admin, "128Mi") == id
        await eventually(lambda: reserved_bytes(rig) == [128 * MIB])
        await rig.stop()
        assert cpusets(rig) == before
        states = state(rig)

        kubelet.start()
        await eventually(lambda: kubelet.phases() == dict.fromkeys(PODS, "Running"))
        assert await wait_for_memory(admin, "128Mi") == id
        assert (cpusets(rig), state(rig)) == (before, states)
        kubelet.stop()
        await rig.start()
        assert await wait_for_memory(admin, "128Mi") == id
        assert (cpusets(rig), state(rig)) == (before, states)
