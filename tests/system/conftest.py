"""The node on a real containerd, with this machine's cgroups under a root of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG
from tests.node.conftest import Bench

WAIT = "trap 'exit 0' TERM; while true; do sleep 0.1; done"


def container(name: str = "c", script: str = WAIT, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": BUSYBOX_TAG,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        **fields,
    }


@pytest.fixture
async def bench(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> AsyncIterator[Bench]:
    bench = Bench(
        tmp_path,
        containerd.socket,
        cgroups_per_qos=True,
        enforce_node_allocatable=["pods"],
        cgroup_root=private_cgroup_root,
    )
    yield bench
    await bench.close()
