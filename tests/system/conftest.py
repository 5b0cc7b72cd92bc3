"""Run the node on a real containerd, with this machine's cgroups below a root of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.testing.containerd import Containerd
from tests.cluster_rig import Cluster, Joined, cluster
from tests.node_rig import Rig

__all__ = ["cluster"]


@pytest.fixture
async def rig(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> AsyncIterator[Rig]:
    rig = Rig(
        tmp_path,
        containerd.socket,
        cgroups_per_qos=True,
        enforce_node_allocatable=["pods"],
        cgroup_root=private_cgroup_root,
    )
    yield rig
    await rig.close()


@pytest.fixture
async def joined(tmp_path: Path, containerd: Containerd, cluster: Cluster) -> AsyncIterator[Joined]:
    """Yield a node of the cluster on containerd that is not started yet."""
    rig = Joined(tmp_path, containerd.socket)
    rig.kubeconfig = cluster.server.kubeconfig("system:node:n1")
    yield rig
    await rig.close()
