"""A node on the hollow runtime joins a cluster: the test server's, and a real one where KUBE_BIN says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import KubengineError
from engine.cluster.client import ApiClient
from engine.testing.apiserver import ApiServer, ApiServerFault
from tests.cluster.conftest import Connect
from tests.cluster.control_plane import ControlPlane, Object, Plane, shown
from tests.waiting import PATIENCE

NODE = "/api/v1/nodes/n1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
EVENTS = "/api/v1/namespaces/default/events"


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
    never = {"lastHeartbeatTime": None, "lastTransitionTime": None}
    conditions = [{"type": kind, "status": "Unknown", **never} for kind in ("Theirs", "Ready")]
    await plane.admin.patch(f"{NODE}/status", {"status": {"conditions": conditions}}, Object)
    await start(plane.node)
    again = await shown(plane.admin, NODE, is_ready)
    assert again["metadata"]["uid"] == known["metadata"]["uid"]
    assert again["metadata"]["labels"]["team"] == "a"
    assert again["spec"]["taints"][0]["key"] == "k"
    assert "Theirs" in {each["type"] for each in again["status"]["conditions"]}


async def test_foreign_changes_of_the_node_are_honoured(plane: Plane, start: Any):
    node = await start(plane.node)
    await shown(plane.admin, NODE, is_ready)
    await plane.admin.patch(NODE, {"metadata": {"labels": {"disk": "ssd"}}}, Object)
    await plane.admin.patch(NODE, {"spec": {"unschedulable": True}}, Object)
    said = await shown(
        plane.admin, EVENTS, lambda listed: any(e["reason"] == "NodeNotSchedulable" for e in listed["items"])
    )
    (cordoned,) = (each for each in said["items"] if each["reason"] == "NodeNotSchedulable")
    assert cordoned["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    judged_by = node.node_object()
    assert judged_by.labels["disk"] == "ssd"
    assert judged_by.spec.unschedulable
    await plane.admin.patch(NODE, {"spec": {"unschedulable": None}}, Object)


async def test_changed_os_and_arch_labels_are_restored_with_the_next_status(plane: Plane, start: Any):
    await start(plane.node)
    known = await shown(plane.admin, NODE, is_ready)
    names = ("kubernetes.io/os", "kubernetes.io/arch")
    right = {name: known["metadata"]["labels"][name] for name in names}
    wrong = {names[0]: "dummyOS", names[1]: None, "team": "a"}
    await plane.admin.patch(NODE, {"metadata": {"labels": wrong}}, Object)
    mended = await shown(plane.admin, NODE, lambda node: right.items() <= node["metadata"]["labels"].items())
    assert mended["metadata"]["labels"]["team"] == "a"


async def test_a_resource_that_an_admin_gave_the_node_stays(plane: Plane, start: Any):
    await start(plane.node)
    await shown(plane.admin, NODE, is_ready)
    given = {"status": {"capacity": {"example.com/dongle": "4"}}}
    await plane.admin.patch(f"{NODE}/status", given, Object)
    known = await shown(
        plane.admin, NODE, lambda node: node["status"]["allocatable"].get("example.com/dongle") == "4"
    )
    assert known["status"]["capacity"]["example.com/dongle"] == "4"


async def test_volumes_in_use_are_reported_until_released_and_attached_ones_read(plane: Plane, start: Any):
    disk = "kubernetes.io/csi/disk.example^1"
    node = await start(plane.node)
    await shown(plane.admin, NODE, is_ready)
    attachments = node.running.attachments
    attachments.use(disk, "a pod")
    attachments.complete()
    await shown(plane.admin, NODE, lambda node: node["status"].get("volumesInUse") == [disk])
    attached = {"status": {"volumesAttached": [{"name": disk, "devicePath": "/dev/x"}]}}
    await plane.admin.patch(f"{NODE}/status", attached, Object)
    async with asyncio.timeout(PATIENCE):
        await attachments.wait_until_attached(disk)
    attachments.release(disk, "a pod")
    known = await shown(plane.admin, NODE, lambda node: "volumesInUse" not in node["status"])
    assert known["status"]["volumesAttached"] == attached["status"]["volumesAttached"]


async def test_a_deleted_node_is_not_created_again(tmp_path: Path, start: Any):
    async with ApiServer(tmp_path / "server") as server:
        await start(server.kubeconfig("system:node:n1"))
        await _until(lambda: bool(server.list("/api/v1/nodes")) and is_ready(server.get(NODE)))
        await _until(lambda: ("/api/v1/nodes", "metadata.name=n1") in server.open_watches)
        await _until(lambda: bool(server.list(LEASE.rpartition("/")[0])))
        server.delete(NODE)
        server.delete(LEASE)  # as the garbage collector does
        asked = len(server.requests)
        await _until(lambda: ("GET", "/api/v1/pods") in _asked(server, asked))
        assert ("POST", "/api/v1/nodes") not in _asked(server, asked)
        assert server.list("/api/v1/nodes") == []


def _asked(server: ApiServer, after: int) -> set[tuple[str, str]]:
    return {(seen.method, seen.path) for seen in server.requests[after:]}


async def test_a_restarted_control_plane_receives_everything_again(
    real: ControlPlane, connect: Connect, start: Any
):
    """The API server comes back with another certificate of its own; etcd goes beneath it."""
    admin = connect(real.admin)
    await start(real.node)
    for stop, again in ((real.stop_apiserver, real.start_apiserver), (real.stop_etcd, real.start_etcd)):
        before = (await shown(admin, LEASE, lambda _: True))["spec"]["renewTime"]
        stop()
        await asyncio.sleep(2)
        await asyncio.to_thread(again)
        await _until_renewed(admin, before)


async def _until_renewed(admin: ApiClient, before: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(KubengineError):
                if (await admin.get(LEASE, Object))["spec"]["renewTime"] != before:
                    return
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    "fault",
    [ApiServerFault.DROP, ApiServerFault.RESET, ApiServerFault.MALFORMED, ApiServerFault.GO_AWAY, 500, 429],
)
async def test_a_node_joins_through_trouble(tmp_path: Path, start: Any, fault: ApiServerFault | int):
    async with ApiServer(tmp_path / "server") as server:
        server.fail(fault, times=5, retry_after=0)
        await start(server.kubeconfig("system:node:n1"))
        await _until(lambda: bool(server.list("/api/v1/nodes")) and is_ready(server.get(NODE)))


async def test_a_returned_server_receives_everything_without_an_agent_restart(tmp_path: Path, start: Any):
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


async def test_an_idle_node_sends_only_its_lease(plane: Plane, start: Any):
    await start(plane.node)
    await shown(plane.admin, NODE, is_ready)
    requests = plane.requests_of_node
    await _until(lambda: requests()[-3:] == [LEASE] * 3)
    before = len(requests())
    await asyncio.sleep(2.5)  # two looks at the node
    assert set(requests()[before:]) == {LEASE}


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 (whatever it is, it tells nobody)
            await asyncio.sleep(0.02)
