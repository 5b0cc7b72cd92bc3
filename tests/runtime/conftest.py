"""Runtimes to test against: the embedded one, a real containerd, the hollow one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.cri.client import RuntimeClient
from engine.runtime.hollow import HollowRuntime
from tests.runtime.pods import BUSYBOX, Pods, embedded_runtime


@pytest_asyncio.fixture
async def embedded(tmp_path: Path, busybox_archive: Path, private_cgroup_root: str) -> AsyncIterator[Pods]:
    async with embedded_runtime(tmp_path, busybox_archive, private_cgroup_root) as pods:
        yield pods


@pytest_asyncio.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.root),
        pytest.param("containerd", marks=[pytest.mark.containerd, pytest.mark.root]),
    ]
)
async def pods(
    request: pytest.FixtureRequest, tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> AsyncIterator[Pods]:
    """Yield the pods of an embedded runtime or of a real containerd; a test that uses them runs with both."""
    if request.param == "embedded":
        async with embedded_runtime(tmp_path, busybox_archive, private_cgroup_root) as made:
            yield made
        return
    containerd = request.getfixturevalue("containerd")
    client = RuntimeClient(str(containerd.socket))
    made = Pods(client, tmp_path, private_cgroup_root, "containerd")
    try:
        yield made
    finally:
        await made.remove_all()
        await client.close()


@pytest_asyncio.fixture
async def hollow(tmp_path: Path) -> AsyncIterator[tuple[HollowRuntime, Pods]]:
    async with HollowRuntime(tmp_path / "r.sock") as runtime:
        client = RuntimeClient(str(runtime.socket))
        await client.pull_image(BUSYBOX)
        yield runtime, Pods(client, tmp_path, "/hollow", "hollow")
        await client.close()
