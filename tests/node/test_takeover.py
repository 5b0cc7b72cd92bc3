"""Pods that a kubelet left running: what an agent that comes after it keeps, and what it replaces."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.cri.client import RuntimeClient
from engine.runtime.hollow import PREFIX, HollowRuntime
from tests.node_bench import Bench, container
from tests.waiting import eventually

from .kubelets_pods import UID, container_config, leave_pod


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


async def test_nothing_restarts_and_the_uid_stays(bench: Bench, hollow: HollowRuntime, client: RuntimeClient):
    containers = [container_config(), container_config("side")]
    await leave_pod(client, "web-n1", containers, logs=bench.root.parent / "logs")
    before = held(hollow)
    written = bench.root / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "data" / "file"
    written.parent.mkdir(parents=True)
    written.write_text("kept")
    spec = {
        "containers": [container(), container("side")],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    path = bench.write("web", spec)
    await bench.start()
    for _ in range(2):
        await eventually(lambda: bench.phase("web") == "Running")
        assert bench.pod("web").uid == UID
        assert held(hollow) == before
        assert [s.restart_count for s in bench.pod("web").status.container_statuses] == [0, 0]
        bench.write("web", spec)
        await bench.restart()
    assert written.read_text() == "kept"
    path.unlink()
    await eventually(lambda: not bench.node.pods())
    assert held(hollow) == {"sandboxes": set(), "containers": set()}
    assert not list((bench.root / "pods").iterdir())


async def test_a_finished_job_is_not_run_again(bench: Bench, hollow: HollowRuntime, client: RuntimeClient):
    job = container_config(**{f"{PREFIX}exit-after": "1ms"})
    await leave_pod(client, "job-n1", [job], logs=bench.root.parent / "logs")
    records = hollow.service.records
    await eventually(lambda: all(c.finished_at for c in records.containers.values()))
    for sandbox in list(records.sandboxes):
        await client.stop_pod_sandbox(sandbox)
    before = held(hollow)
    bench.write("job", {"restartPolicy": "Never", "containers": [container()]})
    await bench.start()
    await eventually(lambda: bench.phase("job") == "Succeeded")
    assert bench.pod("job").uid == UID
    assert held(hollow) == before


@pytest.mark.parametrize(
    "changed",
    [container(image="busybox:2"), container("other"), container(env=[{"name": "A", "value": "2"}])],
    ids=["image", "name", "environment"],
)
async def test_an_edit_while_no_agent_was_there_is_an_edit(
    bench: Bench, hollow: HollowRuntime, client: RuntimeClient, changed: dict[str, object]
):
    _, (identity,) = await leave_pod(client, "web-n1", [container_config()], logs=bench.root.parent / "logs")
    bench.write("web", {"containers": [container()]})
    await bench.start()
    await eventually(lambda: bench.phase("web") == "Running")
    await bench.node.stop()
    bench.write("web", {"containers": [changed]})
    await bench.start()
    await eventually(lambda: bench.phase("web") == "Running")
    assert bench.pod("web").uid != UID
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
    bench: Bench, hollow: HollowRuntime, client: RuntimeClient, left: object, source: str
):
    logs = bench.root.parent / "logs"
    _, (identity,) = await leave_pod(client, "web-n1", [left], logs=logs, source=source)
    bench.write("web", {"containers": [container()]})
    await bench.start()
    await eventually(lambda: bench.phase("web") == "Running")
    assert bench.pod("web").uid != UID
    assert identity not in hollow.service.records.containers


async def test_of_two_pods_of_a_name_the_newer_is_kept(
    bench: Bench, hollow: HollowRuntime, client: RuntimeClient
):
    logs = bench.root.parent / "logs"
    await leave_pod(client, "web-n1", [container_config()], logs=logs, uid="older")
    _, (identity,) = await leave_pod(client, "web-n1", [container_config()], logs=logs, uid="newer")
    bench.write("web", {"containers": [container()]})
    await bench.start()
    await eventually(lambda: bench.phase("web") == "Running")
    assert bench.pod("web").uid == "newer"
    await eventually(lambda: set(hollow.service.records.containers) == {identity})


async def test_a_manifests_own_uid_decides(bench: Bench, hollow: HollowRuntime, client: RuntimeClient):
    await leave_pod(client, "web-n1", [container_config()], logs=bench.root.parent / "logs")
    bench.write("web", {"containers": [container()]}, uid="chosen")
    await bench.start()
    await eventually(lambda: bench.phase("web") == "Running")
    assert bench.pod("web").uid == "chosen"
