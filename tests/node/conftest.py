"""A node of one's own on the hollow runtime."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.runtime.hollow import HollowRuntime
from engine.testing.apiserver import ApiServer
from tests.cluster_bench import Cluster, Joined
from tests.node_bench import Bench


@pytest.fixture
async def hollow() -> AsyncIterator[HollowRuntime]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            yield runtime


@pytest.fixture
async def bench(tmp_path: Path, hollow: HollowRuntime) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, hollow.socket)
    yield bench
    await bench.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with ApiServer(tmp_path / "api") as server:
        config = load_kubeconfig(server.kubeconfig("admin"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        yield Cluster(server, client)
        client.close()


@pytest.fixture
async def joined(tmp_path: Path, hollow: HollowRuntime, cluster: Cluster) -> AsyncIterator[Joined]:
    bench = Joined(tmp_path, hollow.socket)
    bench.kubeconfig = cluster.server.kubeconfig("system:node:n1")
    yield bench
    await bench.close()
