"""A container runtime that stands still delays no page of the node for longer than the page waits for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.cli.agent.client import AgentClient
from engine.cli.agent.paths import SOCKET_NAME
from engine.images import manager
from engine.node.nodeinfo import description
from engine.server import HttpServer
from tests.frozen import frozen
from tests.node_rig import Rig, container
from tests.waiting import eventually

RUNTIME = """
import asyncio, sys
from engine.testing import HollowRuntime

async def serve():
    async with HollowRuntime(sys.argv[1]) as runtime:
        runtime.images.add("busybox:1")
        await asyncio.Event().wait()

asyncio.run(serve())
"""
PAGES = ["/healthz", "/pods", "/metrics", "/metrics/probes", "/kubengine", "/kubengine/node", "/"]
PATIENCE = 60.0
"""Half of what a call to the runtime may take (`runtimeRequestTimeout`): an answer comes by itself or not."""


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", RUNTIME, tmp_path / "cri.sock"]) as process:
        yield process
        process.kill()


@pytest.fixture
async def served(tmp_path: Path, runtime: subprocess.Popen[bytes]) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, tmp_path / "cri.sock", enable_server=False, healthz_port=0)
    rig.write("p", {"containers": [container()]})
    await eventually(rig.endpoint.exists)
    server = HttpServer(await rig.start(), socket_path=rig.root / SOCKET_NAME)
    await server.start()
    await eventually(lambda: rig.phase("p") == "Running")
    yield rig
    await server.stop()
    await rig.close()


async def test_pages_are_answered(
    served: Rig, runtime: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Node's images come from the runtime: it is shown without them once a wait of seconds is over, not
    after the minutes that a call may take.
    """
    monkeypatch.setattr(description, "IMAGES_SECONDS", 0.5)
    monkeypatch.setattr(manager, "IMAGE_CACHE_PERIOD", 0.0)
    client = AgentClient(str(served.root), timeout=PATIENCE)
    with frozen(runtime.pid):
        for page in PAGES:
            assert await asyncio.to_thread(client.get, page), page
        node = await asyncio.to_thread(client.describe, "node")
        assert not node["status"].get("images")
        assert "Ready" in [each["type"] for each in node["status"]["conditions"]]
    assert (await asyncio.to_thread(client.describe, "node"))["status"]["images"]
