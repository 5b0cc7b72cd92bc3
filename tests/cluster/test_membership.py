"""A node on the hollow runtime joins a cluster: the test server's, and a real one where KUBE_BIN says so."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.cluster.client import ApiClient, ApiError
from engine.node import Node
from engine.runtime.hollow import HollowRuntime
from engine.testing.apiserver import ApiServer, Fault
from tests.cluster.conftest import Connect
from tests.cluster.control_plane import ControlPlane

NODE = "/api/v1/nodes/n1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
EVENTS = "/api/v1/namespaces/default/events"
Object = dict[str, Any]


@dataclass
class Plane:
    node: Path
    admin: ApiClient


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    binaries = os.environ.get("KUBE_BIN", "")
    if not (Path(binaries) / "kube-apiserver").is_file() or not binaries or shutil.which("etcd") is None:
        pytest.skip("needs KUBE_BIN, a folder with kube-apiserver, and etcd on the PATH")
    with ControlPlane(tmp_path_factory.mktemp("plane"), Path(binaries)) as plane:
        yield plane


@pytest.fixture(params=["test server", "kube-apiserver"])
async def plane(request: pytest.FixtureRequest, tmp_path: Path, connect: Connect) -> AsyncIterator[Plane]:
    if request.param == "kube-apiserver":
        control_plane = request.getfixturevalue("real")
        yield Plane(control_plane.node, connect(control_plane.admin))
        return
    async with ApiServer(tmp_path / "server") as server:
        yield Plane(server.kubeconfig("system:node:n1"), connect(server.kubeconfig("admin")))


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[Path], Awaitable[Node]]]:
    nodes = []
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:

            async def started(kubeconfig: Path) -> Node:
                config = KubeletConfiguration(
                    cgroups_per_qos=False,
                    enforce_node_allocatable=[],
                    pod_logs_dir=str(tmp_path / "logs"),
                    node_lease_duration_seconds=1,
                    node_status_update_frequency=Duration(1),
                    node_status_report_frequency=Duration(300),
                )
                node = Node(
                    config=config,
                    runtime_endpoint=str(runtime.socket),
                    root=tmp_path / "root",
                    name="n1",
                    kubeconfig=kubeconfig,
                )
                nodes.append(node)
                await node.start()
                return node

            yield started
            for node in nodes:
                await node.stop()


async def shown(client: ApiClient, path: str, holds: Callable[[Object], bool]) -> Object:
    """The object once it is there and as wanted."""
    async with asyncio.timeout(30):
        while True:
            try:
                known = await client.get(path, Object)
                if holds(known):
                    return known
            except ApiError as error:
                if error.code != 404:
                    raise
            await asyncio.sleep(0.05)


def is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def test_a_node_is_registered_ready_and_its_lease_moves(plane: Plane, start: Any):
    node = await start(plane.node)
    known = await shown(plane.admin, NODE, is_ready)
    assert (
        known["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"] == "true"
    )
    lease = await shown(plane.admin, LEASE, lambda lease: bool(lease["metadata"].get("ownerReferences")))
    assert lease["spec"]["holderIdentity"] == "n1"
    assert lease["metadata"]["ownerReferences"][0]["uid"] == known["metadata"]["uid"]
    before = lease["spec"]["renewTime"]
    await shown(plane.admin, LEASE, lambda lease: lease["spec"]["renewTime"] != before)
    for _ in range(2):
        node.recorder.node("Normal", "Tried", "once")
    said = await shown(
        plane.admin,
        EVENTS,
        lambda listed: any(e["reason"] == "Tried" and e["count"] == 2 for e in listed["items"]),
    )
    (tried,) = (each for each in said["items"] if each["reason"] == "Tried")
    assert tried["involvedObject"]["name"] == "n1"


async def test_a_second_start_finds_the_node_and_keeps_what_others_wrote(plane: Plane, start: Any):
    node = await start(plane.node)
    known = await shown(plane.admin, NODE, is_ready)
    await node.stop()
    theirs = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    }
    await plane.admin.patch(NODE, theirs, Object)
    condition = {"type": "Theirs", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}
    await plane.admin.patch(f"{NODE}/status", {"status": {"conditions": [condition]}}, Object)
    await start(plane.node)
    version = (await plane.admin.get(NODE, Object))["metadata"]["resourceVersion"]
    again = await shown(
        plane.admin, NODE, lambda n: n["metadata"]["resourceVersion"] != version and is_ready(n)
    )
    assert again["metadata"]["uid"] == known["metadata"]["uid"]
    assert again["metadata"]["labels"]["team"] == "a"
    assert again["spec"]["taints"][0]["key"] == "k"
    assert "Theirs" in {each["type"] for each in again["status"]["conditions"]}


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.RESET, Fault.MALFORMED, Fault.GO_AWAY, 500, 429])
async def test_a_node_joins_through_trouble(tmp_path: Path, start: Any, fault: Fault | int):
    async with ApiServer(tmp_path / "server") as server:
        server.fail(fault, times=5, retry_after=0)
        await start(server.kubeconfig("system:node:n1"))
        await _until(lambda: bool(server.list("/api/v1/nodes")) and is_ready(server.get(NODE)))


async def test_a_server_that_went_and_came_is_told_again_without_a_restart(tmp_path: Path, start: Any):
    async with ApiServer(tmp_path / "server") as server:
        await start(server.kubeconfig("system:node:n1"))
        await _until(lambda: bool(server.list(LEASE.rpartition("/")[0])))
        await server.stop()
        await asyncio.sleep(1)
        before = server.get(LEASE)["spec"]["renewTime"]
        await server.start()
        await _until(lambda: server.get(LEASE)["spec"]["renewTime"] != before)
        server.delete(LEASE)
        await _until(lambda: bool(server.list(LEASE.rpartition("/")[0])))


async def test_an_idle_node_says_no_more_than_its_lease(tmp_path: Path, start: Any):
    async with ApiServer(tmp_path / "server") as server:
        await start(server.kubeconfig("system:node:n1"))
        await _until(lambda: bool(server.list("/api/v1/nodes")) and is_ready(server.get(NODE)))
        await asyncio.sleep(2.5)  # two looks at the node
        told = [(seen.method, seen.path) for seen in server.requests[-3:]]
        assert set(told) == {("PUT", LEASE)}


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (whatever it is, it tells nobody)
            await asyncio.sleep(0.02)
