"""An agent that is killed (SIGKILL) while it makes or takes away a pod's volumes leaves nothing of them.

The agent is a process of its own, with a kubelet's command line; a storage driver that never answers holds it
in the middle. On the test server, and on a real one where KUBE_BIN says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.cluster.client import ApiError
from engine.host.mountinfo import mounts_below
from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from engine.testing.csi_driver import HANGS, SampleCsiDriver
from tests.cluster.agent_process import AgentProcess
from tests.cluster.control_plane import Object, Plane, shown
from tests.cluster.objects import NAMESPACE, encoded, is_ready, make, run
from tests.waiting import eventually

pytestmark = pytest.mark.root

DRIVER = "sample.csi.example.com"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
TOKEN = {"serviceAccountToken": {"path": "token"}}
VOLUMES = {
    "secret": {"secret": {"secretName": "s"}},
    "access": {"projected": {"sources": [TOKEN, {"secret": {"name": "s"}}]}},
    "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    "map": {"configMap": {"name": "m"}},
    "driver": {"csi": {"driver": DRIVER}},
}


class Agent(AgentProcess):
    """Run an agent as the node n1."""

    def __init__(self, directory: Path, kubeconfig: Path, socket: Path) -> None:
        super().__init__(directory, socket, {"kubeconfig": kubeconfig, "hostname-override": "n1"})

    def is_cleaned_up(self) -> bool:
        return mounts_below(self.root) == [] and list((self.root / "pods").iterdir()) == []


@pytest.fixture
async def agent(plane: Plane) -> AsyncIterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        directory = Path(short)
        async with HollowRuntime(directory / "cri.sock") as runtime:
            made = Agent(directory, plane.node, runtime.socket)
            try:
                yield made
            finally:
                await made.kill()
                unmount_below(directory)


@pytest.mark.parametrize("method", ["NodePublishVolume", "NodeUnpublishVolume"])
async def test_no_mount_no_directory_and_no_token_is_left(plane: Plane, agent: Agent, method: str) -> None:
    driver = SampleCsiDriver(agent.root.parent / "d", agent.root / "plugins_registry")
    await agent.start()
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make(plane, "secrets", "s", data={"k": encoded("1")})
    await make(plane, "configmaps", "m", data={"a": "1"})
    spec = {
        "attachRequired": False,
        "podInfoOnMount": False,
        "volumeLifecycleModes": ["Ephemeral"],
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
    }
    await plane.admin.create(DRIVERS, {"metadata": {"name": DRIVER}, "spec": spec}, Object)
    try:
        await driver.start()
        driver.faults[method] = HANGS
        mounts: list[Object] = [{"name": name, "mountPath": f"/{name}"} for name in VOLUMES]
        mounts.append({"name": "map", "mountPath": "/part", "subPath": "a"})
        container = {"name": "c", "image": "busybox:1", "volumeMounts": mounts}
        volumes = [{"name": name, **source} for name, source in VOLUMES.items()]
        await run(
            plane,
            "p",
            {"containers": [container], "volumes": volumes, "automountServiceAccountToken": False},
        )
        pod = f"{NAMESPACE}/pods/p"
        if method == "NodeUnpublishVolume":
            made = await shown(plane.admin, pod, is_ready)
            files = agent.root / "pods" / made["metadata"]["uid"] / "volumes/kubernetes.io~projected/access"
            token = (files / "token").read_text()
            await plane.admin.delete(pod, {"gracePeriodSeconds": 1})
        await eventually(lambda: driver.called(method))
        await agent.kill()
        assert list((agent.root / "pods").iterdir()), "there was something to leave"
        await plane.admin.delete(pod, {"gracePeriodSeconds": 0})
        driver.faults.clear()
        await agent.start()
        await eventually(agent.is_cleaned_up)
        if method == "NodeUnpublishVolume":
            assert token not in agent.log()
            kept = [file for file in agent.root.rglob("*") if file.is_file() and not file.is_symlink()]
            assert [file for file in kept if token.encode() in file.read_bytes()] == []
    finally:
        await driver.stop()
        try:
            await plane.admin.delete(f"{DRIVERS}/{DRIVER}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            assert error.code == 404  # noqa: PT017
