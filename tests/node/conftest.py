"""A node of one's own on the hollow runtime."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster, Joined, cluster
from tests.disks import disk
from tests.node_rig import Rig

__all__ = ["cluster"]


@pytest.fixture
async def hollow() -> AsyncIterator[HollowRuntime]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            yield runtime


@pytest.fixture
async def rig(tmp_path: Path, hollow: HollowRuntime) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, hollow.socket)
    yield rig
    await rig.close()


@pytest.fixture
async def joined(tmp_path: Path, hollow: HollowRuntime, cluster: Cluster) -> AsyncIterator[Joined]:
    rig = Joined(tmp_path, hollow.socket)
    rig.kubeconfig = cluster.server.kubeconfig("system:node:n1")
    yield rig
    await rig.close()


@pytest.fixture
async def device(tmp_path: Path, joined: Joined) -> AsyncIterator[Path]:
    """Yield an empty disk. End the node and unmount its volumes afterwards."""
    with disk(tmp_path / "disk") as device:
        yield device
        await joined.close()
        joined.node = None
        unmount_below(tmp_path)
