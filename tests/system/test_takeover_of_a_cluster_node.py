"""A node of a cluster goes from a kubelet to this agent and back: what its pods have of a storage driver, a
device plugin and the CPU manager stays, and nothing restarts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.cri.client import RuntimeClient
from engine.host.mountinfo import mounts_below
from engine.host.mounts import unmount_below
from engine.testing.containerd import Containerd
from engine.testing.csi_driver import SampleCsiDriver
from engine.testing.device_plugin import SampleDevicePlugin
from tests.cluster.control_plane import ControlPlane, binaries
from tests.guarded_host import COMMAND
from tests.shadow.conftest import kubelet_of
from tests.shadow.test_beside_kubelet import command
from tests.shadow.test_takeover_check import PINNING
from tests.system.busybox import container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import eventually

pytestmark = [
    pytest.mark.containerd, pytest.mark.root, pytest.mark.slow, needs_kubelet,
    pytest.mark.skipif((os.cpu_count() or 0) < 2, reason="exclusive CPUs need two CPUs"),
]  # fmt: skip

GPU, DRIVER = "example.com/gpu", "sample.csi.example.com"
NAMESPACE = "/api/v1/namespaces/default"
DATA = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
PODS: dict[str, dict[str, Any]] = {
    "driver": {
        "containers": [container(**DATA)],
        "volumes": [{"name": "data", "csi": {"driver": DRIVER}}],
    },
    "empty": {"containers": [container(**DATA)], "volumes": [{"name": "data", "emptyDir": {}}]},
    "device": {"containers": [container(resources={"limits": {GPU: 2}})]},
    "pinned": {"containers": [container(resources={"limits": {"cpu": "1", "memory": "64Mi"}})]},
}


class ClusterNode:
    """Serve a node with a device plugin and a CSI driver by a kubelet or by the agent."""

    def __init__(
        self, directory: Path, kubelet: Kubelet, plane: ControlPlane, runtime: RuntimeClient
    ) -> None:
        self.directory, self.root, self.kubelet, self._runtime = (
            directory,
            directory / "root",
            kubelet,
            runtime,
        )
        config = load_kubeconfig(plane.admin)
        self.api = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        plugins = self.root / "device-plugins"
        self.plugin = SampleDevicePlugin(GPU, plugins / "gpu.sock", count=4)
        self.driver = SampleCsiDriver(directory / "csi", self.root / "plugins_registry", DRIVER)
        self._agent: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        """Run the pods with the kubelet."""
        self.kubelet.start()
        await eventually((self.root / "device-plugins" / "kubelet.sock").exists)
        await self.plugin.start()
        self.plugin.follow(self.root / "device-plugins")
        await self.driver.start()
        modes = {"attachRequired": False, "volumeLifecycleModes": ["Ephemeral"]}
        await self.create("/apis/storage.k8s.io/v1/csidrivers", {"name": DRIVER}, spec=modes)
        await eventually(self._has_account)
        for name, spec in PODS.items():
            about = {
                "nodeName": "n1",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
            }
            await self.create(f"{NAMESPACE}/pods", {"name": name}, spec={**about, **spec})
        await eventually(lambda: self.kubelet.phases() == dict.fromkeys(PODS, "Running"))

    async def _has_account(self) -> bool:
        try:
            await self.create(f"{NAMESPACE}/serviceaccounts", {"name": "default"})
        except ApiError as error:
            return error.reason == "AlreadyExists"
        return True

    async def create(self, path: str, metadata: dict[str, Any], **fields: Any) -> None:
        await self.api.create(path, {"metadata": metadata, **fields}, dict[str, Any])

    async def with_agent(self) -> None:
        times = len(self.driver.status)
        line = [*COMMAND, "kubelet", *self.kubelet.flags]
        with (self.directory / "agent.log").open("wb") as log:
            self._agent = await asyncio.create_subprocess_exec(*line, stdout=log, stderr=log)
        await eventually(lambda: len(self.driver.status) > times)
        await eventually(lambda: self.kubelet.phases() == dict.fromkeys(PODS, "Running"))

    async def without_agent(self) -> None:
        if self._agent is not None:
            agent, self._agent = self._agent, None
            agent.terminate()
            await agent.wait()

    async def held(self) -> dict[str, Any]:
        """Return the state that must not change: containers, mounts, devices and CPUs."""
        containers = await self._runtime.list_containers()
        statuses = [(await self._runtime.container_status(one.id)).status for one in containers]
        devices = json.loads((self.root / "device-plugins" / "kubelet_internal_checkpoint").read_text())
        return {
            "containers": sorted((s.id, s.state, s.started_at, s.metadata.attempt) for s in statuses),
            "sandboxes": sorted((s.id, s.state) for s in await self._runtime.list_pod_sandboxes()),
            "mounts": sorted(str(mount) for mount in mounts_below(self.root / "pods")),
            "devices": sorted(map(str, devices["Data"]["PodDeviceEntries"])),
            "cpus": json.loads((self.root / "cpu_manager_state").read_text())["entries"],
        }

    async def close(self) -> None:
        await self.without_agent()
        await self.plugin.stop()
        await self.driver.stop()
        self.api.close()


@pytest.fixture
async def node(containerd: Containerd, private_cgroup_root: str) -> AsyncIterator[ClusterNode]:
    runtime = RuntimeClient(str(containerd.socket), timeout=30)
    # Sockets of plugins have long names, and a path of one may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="kt-") as directory:
        short = Path(directory)
        with (
            ControlPlane(short / "plane", binaries()) as plane,
            kubelet_of(short, containerd, private_cgroup_root, kubeconfig=plane.node) as kubelet,
        ):
            fields = {**yaml.safe_load(kubelet.config.read_text()), **PINNING}
            kubelet.config.write_text(yaml.safe_dump(fields))
            node = ClusterNode(short, kubelet, plane, runtime)
            yield node
            await node.close()
        unmount_below(short)
    await runtime.close()


async def test_a_node_is_taken_over_and_given_back(node: ClusterNode) -> None:
    await node.begin()
    before = await node.held()
    assert all(before.values())
    line = command(node.kubelet, node.directory, "--check", name="takeover")
    foretold = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, check=False)
    report = json.loads(foretold.stdout)
    assert (foretold.returncode, report["counts"]["kept"]) == (0, len(PODS))
    holds = {one["pod"].partition("/")[2]: " ".join(one["holds"]) for one in report["pods"]}
    assert "CPUs 1" in holds["pinned"]
    assert GPU in holds["device"]
    assert DRIVER in holds["driver"]
    await asyncio.to_thread(node.kubelet.stop)
    await node.with_agent()
    assert await node.held() == before
    await node.without_agent()
    node.kubelet.start()
    await eventually(lambda: node.kubelet.phases() == dict.fromkeys(PODS, "Running"))
    assert await node.held() == before
