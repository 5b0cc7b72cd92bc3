"""Pods that a kubelet left running: what an agent that comes after it keeps, and what it replaces."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.cri.client import RuntimeClient
from engine.runtime.hollow import PREFIX, HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.node.kubelets_pods import UID, container_config, leave_pod
from tests.node_rig import Rig, container
from tests.waiting import eventually


@pytest.fixture
async def client(hollow: HollowRuntime) -> AsyncIterator[RuntimeClient]:
    client = RuntimeClient(str(hollow.socket), timeout=10)
    for image in ("busybox:1", "busybox:2"):
        await client.pull_image(image)
    yield client
    await client.close()


def held(hollow: HollowRuntime) -> dict[str, set[str]]:
    records = hollow.service.records
    return {"sandboxes": set(records.sandboxes), "containers": set(records.containers)}


async def test_nothing_restarts_and_the_uid_stays(rig: Rig, hollow: HollowRuntime, client: RuntimeClient):
    containers = [container_config(), container_config("side")]
    await leave_pod(client, "web-n1", containers, logs=rig.root.parent / "logs")
    before = held(hollow)
    written = rig.root / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "data" / "file"
    written.parent.mkdir(parents=True)
    written.write_text("kept")
    spec = {
        "containers": [container(), container("side")],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    path = rig.write("web", spec)
    await rig.start()
    for _ in range(2):
        await eventually(lambda: rig.phase("web") == "Running")
        assert rig.pod("web").uid == UID
        assert held(hollow) == before
        assert [s.restart_count for s in rig.pod("web").status.container_statuses] == [0, 0]
        rig.write("web", spec)
        await rig.restart()
    assert written.read_text() == "kept"
    path.unlink()
    await eventually(lambda: not rig.node.pods())
    assert held(hollow) == {"sandboxes": set(), "containers": set()}
    assert not list((rig.root / "pods").iterdir())


async def test_a_finished_job_is_not_run_again(rig: Rig, hollow: HollowRuntime, client: RuntimeClient):
    job = container_config(**{f"{PREFIX}exit-after": "1ms"})
    await leave_pod(client, "job-n1", [job], logs=rig.root.parent / "logs")
    records = hollow.service.records
    await eventually(lambda: all(c.finished_at for c in records.containers.values()))
    for sandbox in list(records.sandboxes):
        await client.stop_pod_sandbox(sandbox)
    before = held(hollow)
    rig.write("job", {"restartPolicy": "Never", "containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.phase("job") == "Succeeded")
    assert rig.pod("job").uid == UID
    assert held(hollow) == before


@pytest.mark.parametrize(
    "changed",
    [container(image="busybox:2"), container("other"), container(env=[{"name": "A", "value": "2"}])],
    ids=["image", "name", "environment"],
)
async def test_an_edit_while_no_agent_was_there_is_an_edit(
    rig: Rig, hollow: HollowRuntime, client: RuntimeClient, changed: dict[str, object]
):
    _, (identity,) = await leave_pod(client, "web-n1", [container_config()], logs=rig.root.parent / "logs")
    rig.write("web", {"containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.phase("web") == "Running")
    await rig.node.stop()
    rig.write("web", {"containers": [changed]})
    await rig.start()
    await eventually(lambda: rig.phase("web") == "Running")
    assert rig.pod("web").uid != UID
    await eventually(lambda: identity not in hollow.service.records.containers)


@pytest.mark.parametrize(
    ("left", "source"),
    [
        (container_config("other", hash="1"), "file"),
        (container_config(hash="1"), "file"),
        (container_config(), "api"),
    ],
    ids=["name", "hash", "source"],
)
async def test_another_pod_of_that_name_is_replaced(
    rig: Rig, hollow: HollowRuntime, client: RuntimeClient, left: cri.ContainerConfig, source: str
):
    logs = rig.root.parent / "logs"
    _, (identity,) = await leave_pod(client, "web-n1", [left], logs=logs, source=source)
    rig.write("web", {"containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.phase("web") == "Running")
    assert rig.pod("web").uid != UID
    assert identity not in hollow.service.records.containers


async def test_of_two_pods_with_the_same_name_the_newer_is_kept(
    rig: Rig, hollow: HollowRuntime, client: RuntimeClient
):
    logs = rig.root.parent / "logs"
    await leave_pod(client, "web-n1", [container_config()], logs=logs, uid="older")
    _, (identity,) = await leave_pod(client, "web-n1", [container_config()], logs=logs, uid="newer")
    rig.write("web", {"containers": [container()]})
    await rig.start()
    await eventually(lambda: rig.phase("web") == "Running")
    assert rig.pod("web").uid == "newer"
    await eventually(lambda: set(hollow.service.records.containers) == {identity})


async def test_a_manifests_own_uid_decides(rig: Rig, hollow: HollowRuntime, client: RuntimeClient):
    await leave_pod(client, "web-n1", [container_config()], logs=rig.root.parent / "logs")
    rig.write("web", {"containers": [container()]}, uid="chosen")
    await rig.start()
    await eventually(lambda: rig.phase("web") == "Running")
    assert rig.pod("web").uid == "chosen"
