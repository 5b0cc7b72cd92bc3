"""A test API server and a client of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.runtime.hollow import HollowRuntime
from engine.testing.apiserver import ApiServer
from tests.cluster.control_plane import ControlPlane, Plane, binaries
from tests.cluster.scenes import Scene

Connect = Callable[..., ApiClient]
"""Takes the path of a kubeconfig, and perhaps a time-out in seconds."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Yield a function that returns a client for a kubeconfig; close the clients after the test."""
    clients = []

    def connected(kubeconfig: Path, timeout: float = 30.0) -> ApiClient:
        config = load_kubeconfig(kubeconfig)
        credentials = Credentials(config, clock=time.time)
        clients.append(ApiClient(config, credentials, user_agent="test", timeout=timeout))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
async def client(server: ApiServer, connect: Connect) -> ApiClient:
    return connect(server.kubeconfig("system:node:n1"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane"), binaries()) as plane:
        yield plane
        assert plane.refused("system:node:n1") == []


@pytest.fixture(params=["test server", "kube-apiserver"])
async def plane(request: pytest.FixtureRequest, tmp_path: Path, connect: Connect) -> AsyncIterator[Plane]:
    if request.param == "kube-apiserver":
        control_plane = request.getfixturevalue("real")
        yield Plane(control_plane.node, connect(control_plane.admin), control_plane)
        return
    async with ApiServer(tmp_path / "server") as server:
        yield Plane(server.kubeconfig("system:node:n1"), connect(server.kubeconfig("admin")), server)


@pytest.fixture
async def runtime() -> AsyncIterator[HollowRuntime]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as running:
            yield running


@pytest.fixture
async def start(tmp_path: Path, runtime: HollowRuntime) -> AsyncIterator[Callable[..., Awaitable[Node]]]:
    nodes = []

    async def started(kubeconfig: Path, feature_gates: dict[str, bool] | None = None) -> Node:
        config = KubeletConfiguration(
            cgroups_per_qos=False,
            enforce_node_allocatable=[],
            eviction_hard={"memory.available": "0%"},
            image_gc_high_threshold_percent=100,
            pod_logs_dir=str(tmp_path / "logs"),
            node_lease_duration_seconds=1,
            node_status_update_frequency=Duration(1),
            node_status_report_frequency=Duration(300),
            feature_gates=feature_gates or {},
        )
        node = Node(
            config=config,
            runtime_endpoint=str(runtime.socket),
            root=tmp_path / "root",
            name="n1",
            options=NodeOptions(kubeconfig=kubeconfig),
        )
        nodes.append(node)
        await node.start()
        return node

    yield started
    for node in nodes:
        await node.stop()


@pytest.fixture
async def scene(plane: Plane) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            scene = Scene(Path(short), runtime, plane)
            await scene.start()
            try:
                yield scene
                await scene.delete_all()
            finally:
                for plugin in scene.plugins:
                    await plugin.stop()
                await scene.stop()
