"""An agent answers requests before it has read its manifests, as a kubelet does."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration
from engine.cli.agent.paths import default_socket
from engine.cli.agent.process import AgentOptions, AgentProcess
from engine.node.sources import manifests
from engine.runtime.hollow import HollowRuntime
from tests.waiting import PATIENCE


async def healthz(socket: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_healthz_does_not_wait_for_the_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop, stamps = asyncio.get_running_loop(), manifests._stamps

    def held(path: Path) -> object:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE)
        return stamps(path)

    monkeypatch.setattr(manifests, "_stamps", held)
    with tempfile.TemporaryDirectory(prefix="kh-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            options = AgentOptions(
                config=KubeletConfiguration(
                    static_pod_path=str(tmp_path),
                    healthz_port=0,
                    read_only_port=0,
                    cgroups_per_qos=False,
                    enforce_node_allocatable=[],
                ),
                kubengine_config=KubengineConfiguration(),
                runtime=f"unix://{runtime.socket}",
                root_dir=Path(short) / "root",
                node_name="n1",
                clean_up=False,
                kubeconfig=None,
            )
            process = AgentProcess(options)
            running = asyncio.create_task(process.run())
            try:
                async with asyncio.timeout(PATIENCE):
                    await begun.wait()
                    answer = await healthz(default_socket(options.root_dir))
                assert answer.startswith(b"HTTP/1.1 200"), answer
            finally:
                go_on.set()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
