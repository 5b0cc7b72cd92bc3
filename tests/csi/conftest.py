"""A cluster's node with storage drivers, on the hollow runtime, in directories short enough for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from engine.testing.apiserver import ApiServer
from tests.cluster_bench import Cluster, Joined
from tests.csi_bench import CsiBench


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kc-") as directory:
        yield Path(directory)
        unmount_below(Path(directory))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with ApiServer(tmp_path / "api") as server:
        config = load_kubeconfig(server.kubeconfig("admin"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        yield Cluster(server, client)
        client.close()


@pytest.fixture
async def joined(short: Path, cluster: Cluster) -> AsyncIterator[Joined]:
    """Not started yet."""
    async with HollowRuntime(short / "cri.sock") as runtime:
        bench = Joined(short, runtime.socket)
        bench.kubeconfig = cluster.server.kubeconfig("system:node:n1")
        yield bench
        await bench.close()


@pytest.fixture
async def csi(joined: Joined, cluster: Cluster, short: Path) -> AsyncIterator[CsiBench]:
    """With a node that runs, whose drivers end after it."""
    bench = CsiBench(joined, cluster, short / "d")
    await joined.start()
    yield bench
    await joined.close()
    joined.node = None
    await bench.close()
