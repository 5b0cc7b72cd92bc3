"""A claim manager by itself, and a whole node of a cluster."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster, Joined, cluster
from tests.dra.rig import DraRig
from tests.dra_rig import ClaimsRig

__all__ = ["cluster"]


@pytest.fixture
async def dra() -> AsyncIterator[DraRig]:
    """Yield a started claim manager without drivers, in a directory whose path is short enough for
    sockets."""
    with tempfile.TemporaryDirectory(prefix="kd-") as directory:
        rig = DraRig(Path(directory))
        await rig.start()
        yield rig
        await rig.close()


@pytest.fixture
async def claims(tmp_path: Path, cluster: Cluster) -> AsyncIterator[ClaimsRig]:
    """Yield a started node on the hollow runtime. Its drivers stop after it."""
    with tempfile.TemporaryDirectory(prefix="kd-") as directory:
        short = Path(directory)
        async with HollowRuntime(short / "cri.sock") as hollow:
            joined = Joined(short, hollow.socket)
            joined.kubeconfig = cluster.server.kubeconfig("system:node:n1")
            rig = ClaimsRig(joined, cluster, hollow, short / "d")
            await joined.start()
            await cluster.registered()
            yield rig
            await joined.close()
            await rig.close()
