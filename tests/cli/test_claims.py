"""Nothing is touched before the root directory, the ports and the sockets are held."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.kubengine_config import KubengineConfiguration, ServerSection
from engine.cli.agent.process import AgentOptions, AgentProcess
from engine.node import Node
from engine.runtime.hollow import HollowRuntime
from tests.waiting import PATIENCE


@pytest.fixture
async def hollow() -> AsyncIterator[HollowRuntime]:
    with tempfile.TemporaryDirectory(prefix="kc-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            yield runtime


@pytest.fixture
def taken() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held


async def refused(root: Path, hollow: HollowRuntime, **config: int) -> str:
    """Return the error of an agent that must not start. Check that it has not called the runtime."""
    ports = {"healthz_port": 0, "read_only_port": 0, **config}
    process = AgentProcess(
        AgentOptions(
            config=KubeletConfiguration(cgroups_per_qos=False, enforce_node_allocatable=[], **ports),
            kubengine_config=KubengineConfiguration(server=ServerSection(read_only_address="127.0.0.1")),
            runtime=f"unix://{hollow.socket}",
            root_dir=root,
            node_name="n1",
            clean_up=False,
            kubeconfig=None,
        )
    )
    with pytest.raises(Refused) as raised:
        async with asyncio.timeout(PATIENCE):
            await process.run()
    assert not hollow.counts(), "the runtime was asked"
    return str(raised.value)


@pytest.mark.parametrize("port", ["healthz_port", "read_only_port"])
async def test_a_port_of_another_stops_the_agent_before_it_touches_anything(tmp_path, hollow, taken, port):
    said = await refused(tmp_path / "root", hollow, **{port: taken.getsockname()[1]})
    assert "Address already in use" in said
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["kubengine.lock"]


@pytest.mark.parametrize("directory", ["device-plugins", "pod-resources"])
async def test_a_live_kubelet_s_socket_stops_the_agent_before_it_touches_anything(hollow, directory):
    with tempfile.TemporaryDirectory(prefix="kc-") as short:
        path = Path(short) / directory / "kubelet.sock"
        plugin = Path(short) / "device-plugins" / "plugin.sock"
        for each in (path, plugin):
            each.parent.mkdir(exist_ok=True)
        plugin.touch()
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(path))
            kubelet.listen()
            said = await refused(Path(short), hollow)
        assert f"{path}: another process serves this socket" in said
        assert plugin.exists()
        assert path.exists()


@pytest.mark.parametrize("directory", ["device-plugins", "pod-resources"])
async def test_a_kubelet_that_starts_while_the_agent_waits_for_the_runtime_keeps_its_sockets(directory):
    with tempfile.TemporaryDirectory(prefix="kc-") as short:
        root = Path(short) / "root"
        path, plugin = root / directory / "kubelet.sock", root / "device-plugins" / "plugin.sock"
        hollow = HollowRuntime(Path(short) / "cri.sock")
        node = Node(
            config=KubeletConfiguration(cgroups_per_qos=False, enforce_node_allocatable=[]),
            runtime_endpoint=str(hollow.socket),
            root=root,
        )
        starting = asyncio.create_task(node.start())
        while not (root / "kubengine.lock").exists():  # noqa: ASYNC110
            await asyncio.sleep(0)
        for each in (path, plugin):
            each.parent.mkdir(exist_ok=True)
        plugin.touch()
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(path))
            kubelet.listen()
            before = path.lstat().st_ino
            async with hollow:
                with pytest.raises(Refused, match=f"{path}: another process serves this socket"):
                    await starting
                await node.stop()
                assert hollow.counts().keys() == {"Version", "RuntimeConfig"}
        assert path.lstat().st_ino == before
        assert plugin.exists()
        left = {p.name for p in root.rglob("*") if not p.is_dir()}
        assert left == {"kubengine.lock", "plugin.sock", "kubelet.sock"}
        assert len(list(root.rglob("kubelet.sock"))) == 1
