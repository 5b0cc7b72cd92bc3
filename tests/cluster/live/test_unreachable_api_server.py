"""A node whose API server is unreachable: pods continue, and are reported afterwards without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cluster.control_plane import Object
from tests.cluster.scenes import NODE, Scene, conditions, is_ready
from tests.node_rig import container
from tests.ports import free_port
from tests.waiting import eventually


class Probed:
    """Answer HTTP probes with 200 while `good` is set, else with 503."""

    def __init__(self) -> None:
        self.port = free_port()
        self.good = True

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = "200 OK" if self.good else "503 Service Unavailable"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    made = Probed()
    server = await asyncio.start_server(made.answer, "127.0.0.1", made.port)
    yield made
    server.close()


def phase(scene: Scene, name: str) -> str:
    """Return the phase of a pod as the node knows it, or "" for a pod that it does not have."""
    assert scene.node is not None
    return next((p.status.phase for p in scene.node.pods() if p.metadata.name == name), "")


async def test_pods_probes_and_manifests_go_on_while_the_server_is_away(scene: Scene, probed: Probed):
    probe = {"readinessProbe": {"httpGet": {"port": probed.port}, "periodSeconds": 1, "failureThreshold": 1}}
    await scene.run("probed", containers=[container(**probe)])
    ended = await scene.run("ended")
    leaves = scene.write("leaves", {"containers": [container()]})
    before = {name: await scene.wait_for(name, is_ready) for name in ("probed", "ended", "leaves-n1")}
    node = scene.node
    await scene.plane.stop_server()
    probed.good = False
    held = scene.runtime.service.records.containers.values()
    (first,) = (c for c in held if c.sandbox.config.metadata.uid == ended["metadata"]["uid"])
    scene.runtime.end_container(first.id, exit_code=3)
    leaves.unlink()
    scene.write("comes", {"containers": [container()]})
    starts = scene.starts()
    await eventually(lambda: scene.starts() == starts + 2, every=0.1)
    await eventually(lambda: phase(scene, "comes-n1") == "Running" and not phase(scene, "leaves-n1"))
    await scene.plane.start_server()
    await scene.wait_for("ended", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)
    unready = await scene.wait_for("probed", lambda pod: not is_ready(pod))
    assert conditions(unready)["Ready"]["reason"] == "ContainersNotReady"
    await scene.wait_for("comes-n1", is_ready)
    await scene.gone("leaves-n1")
    probed.good = True
    after = await scene.wait_for("probed", is_ready)
    assert after["status"]["startTime"] == before["probed"]["status"]["startTime"]
    assert after["status"]["containerStatuses"] == before["probed"]["status"]["containerStatuses"]
    told: Object = await scene.plane.admin.get(NODE, dict[str, Any])
    assert is_ready(told)
    assert scene.node is node
    scene.manifests.joinpath("comes.yaml").unlink()
    await scene.gone("comes-n1")
