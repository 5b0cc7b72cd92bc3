"""A cluster's node with storage drivers, on the hollow runtime, in directories short enough for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster, Joined, cluster
from tests.csi_rig import CsiRig

__all__ = ["cluster"]


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kc-") as directory:
        yield Path(directory)
        unmount_below(Path(directory))


@pytest.fixture
async def hollow(short: Path) -> AsyncIterator[HollowRuntime]:
    async with HollowRuntime(short / "cri.sock") as runtime:
        yield runtime


@pytest.fixture
async def joined(short: Path, hollow: HollowRuntime, cluster: Cluster) -> AsyncIterator[Joined]:
    """Not started yet."""
    rig = Joined(short, hollow.socket)
    rig.kubeconfig = cluster.server.kubeconfig("system:node:n1")
    yield rig
    await rig.close()


@pytest.fixture
async def csi(joined: Joined, cluster: Cluster, short: Path) -> AsyncIterator[CsiRig]:
    """Yield a started node with CSI drivers, which stop after it."""
    rig = CsiRig(joined, cluster, short / "d")
    await joined.start()
    await cluster.registered()
    yield rig
    await joined.close()
    joined.node = None
    await rig.close()
