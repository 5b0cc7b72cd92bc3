"""A real kubelet and this agent one after the other on the same root: nothing of any pod restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.shadow.kubelet_reader import KubeletAccess
from engine.shadow.takeover_survey import TakeoverSurvey, survey
from engine.shadow.watch import Shadow, ShadowOptions
from engine.testing.containerd import Containerd
from engine.testing.device_plugin import SampleDevicePlugin
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import eventually

pytestmark = [
    pytest.mark.containerd,
    pytest.mark.root,
    pytest.mark.slow,
    needs_kubelet,
]

GPU = "example.com/gpu"
DATA = {"name": "data", "mountPath": "/data"}
EMPTY_DIR = {"volumes": [{"name": "data", "emptyDir": {}}]}
ONCE = "test -e /data/count && echo again >> /data/count || echo first > /data/count; "
EVERY_SECOND = {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 60}
"""One failure would be a restart, and a busy machine takes more than the second that is the default."""

SMALL = {"limits": {"cpu": "0.1", "memory": "32Mi"}}

PODS: dict[str, dict[str, Any]] = {
    "plain": {"containers": [container()]},
    "two": {"containers": [container("a"), container("b", resources=SMALL)]},
    "data": {**EMPTY_DIR, "containers": [container(script=ONCE + WAIT, volumeMounts=[DATA])]},
    "memory": {
        "volumes": [{"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        "containers": [container(script=ONCE + WAIT, volumeMounts=[DATA])],
    },
    "job": {
        **EMPTY_DIR,
        "restartPolicy": "Never",
        "containers": [container(script=ONCE + "exit 0", volumeMounts=[DATA])],
    },
    "probed": {
        "containers": [
            container(
                livenessProbe={"exec": {"command": ["true"]}, **EVERY_SECOND},
                readinessProbe={"exec": {"command": ["true"]}, **EVERY_SECOND},
                startupProbe={"exec": {"command": ["true"]}, **EVERY_SECOND},
            )
        ]
    },
    "port": {"containers": [container(ports=[{"containerPort": 80, "hostPort": 28080}])]},
    "init": {
        **EMPTY_DIR,
        "initContainers": [
            container("one", ONCE + "exit 0", volumeMounts=[DATA]),
            container("side", restartPolicy="Always"),
        ],
        "containers": [container("main")],
    },
    "device": {"containers": [container(resources={"limits": {GPU: 2}})]},
}

CLEAN_UP_SECONDS = 300
"""Also after a failure, when pods may be half made."""

EXPECTED = {name: "Succeeded" if name == "job" else "Running" for name in PODS}


class SharedRoot:
    """Run the kubelet and this agent one after the other on one root and its pods."""

    def __init__(self, rig: Rig, kubelet: Kubelet, client: RuntimeClient) -> None:
        self.rig = rig
        self.kubelet = kubelet
        self.client = client

    async def with_kubelet(self) -> None:
        self.kubelet.start()
        await eventually(lambda: self.kubelet.phases() == EXPECTED and self._probed_by_kubelet())
        await eventually(lambda: self.kubelet.logged("SyncLoop ADD"))

    def _probed_by_kubelet(self) -> bool:
        statuses = self.kubelet.pods()["probed"]["status"]["containerStatuses"]
        return all(status["ready"] for status in statuses)

    async def survey(self) -> TakeoverSurvey:
        """Return the survey of `kubengine takeover --check` while the kubelet runs."""
        access = KubeletAccess(self.kubelet.url)
        shadow = Shadow(ShadowOptions(access, self.rig.root, self.kubelet.config))
        try:
            return await survey(shadow)
        finally:
            await shadow.close()

    async def with_agent(self) -> None:
        await self.rig.start()
        await eventually(lambda: {name: self.rig.phase(name) for name in PODS} == EXPECTED)
        await eventually(lambda: self.rig.pod("probed").status.container_statuses[0].ready)

    async def state(self) -> dict[str, Any]:
        """Return what must not change: sandboxes, containers and their starts, files of running pods,
        devices.

        Files of a pod that has ended are left out: either agent removes them a moment later.
        """
        containers = await self.client.list_containers()
        statuses = [(await self.client.container_status(c.id)).status for c in containers]
        running = {s.labels[labels.POD_UID] for s in statuses if s.state == cri.CONTAINER_RUNNING}
        return {
            "sandboxes": {s.id for s in await self.client.list_pod_sandboxes()},
            "containers": {(s.id, s.state, s.started_at, s.metadata.attempt) for s in statuses},
            "uids": {s.labels[labels.POD_UID] for s in await self.client.list_pod_sandboxes()},
            "files": {
                uid: path.read_text()
                for uid in running
                for path in (self.rig.root / "pods" / uid).glob("volumes/kubernetes.io~empty-dir/data/count")
            },
            "devices": self._devices(),
        }

    def _devices(self) -> list[Any]:
        checkpoint = self.rig.root / "device-plugins" / "kubelet_internal_checkpoint"
        entries = json.loads(checkpoint.read_text())["Data"]["PodDeviceEntries"]
        return [(entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]) for entry in entries]


@pytest.fixture
async def both(rig: Rig, containerd: Containerd, tmp_path: Path) -> AsyncIterator[SharedRoot]:
    kubelet = Kubelet(
        tmp_path, containerd.socket, manifests=rig.manifests, root=rig.root,
        cgroup_root=rig.config.cgroup_root,
    )  # fmt: skip
    kubelet.share_root()
    client = RuntimeClient(str(containerd.socket), timeout=30)
    plugins = rig.root / "device-plugins"
    plugins.mkdir(parents=True)
    plugin = SampleDevicePlugin(GPU, plugins / "gpu.sock", count=4)
    await plugin.start()
    plugin.follow(plugins)
    yield SharedRoot(rig, kubelet, client)
    async with asyncio.timeout(CLEAN_UP_SECONDS):
        await asyncio.to_thread(kubelet.stop)
        await plugin.stop()
        await client.close()
        if rig.node is not None:
            await rig.stop()
        await asyncio.to_thread(containerd.remove_pods)
        await asyncio.to_thread(kubelet.close)


async def test_kubelet_then_us_then_kubelet(both: SharedRoot) -> None:
    both.kubelet.start()
    await eventually((both.rig.root / "device-plugins" / "kubelet.sock").exists)
    for name, spec in PODS.items():
        both.rig.write(name, spec)
    await eventually(lambda: both.kubelet.phases() == EXPECTED)
    before = await both.state()
    assert len(before["devices"]) == 1
    assert set(before["files"].values()) == {"first\n"}
    found = await both.survey()
    assert not found.changes
    assert {one.pod: one.fate for one in found.fates} == {
        f"default/{name}-n1": "ended" if name == "job" else "kept" for name in PODS
    }
    (with_devices,) = [one for one in found.fates if one.pod == "default/device-n1"]
    assert with_devices.holds[0].startswith(f"c: {GPU} ")
    both.kubelet.stop()
    await both.with_agent()
    assert await both.state() == before
    await both.rig.stop()
    await both.with_kubelet()
    assert await both.state() == before
    both.kubelet.stop()
    await both.with_agent()


async def test_us_then_kubelet_then_us(both: SharedRoot) -> None:
    await both.rig.start()
    for name, spec in PODS.items():
        both.rig.write(name, spec)
    await eventually(lambda: {name: both.rig.phase(name) for name in PODS} == EXPECTED)
    before = await both.state()
    assert len(before["devices"]) == 1
    await both.rig.stop()
    await both.with_kubelet()
    assert await both.state() == before
    both.kubelet.stop()
    await both.with_agent()
    assert await both.state() == before
