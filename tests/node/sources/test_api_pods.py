"""A node whose pods come from an API server: a real agent, a hollow runtime, the test API server."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import pytest

from engine.api.duration import Duration
from engine.node.sources.pod_sink import API
from engine.runtime.hollow import HollowRuntime
from engine.runtime.objects.records import READY
from engine.testing.apiserver import ApiServerFault
from engine.testing.apiserver.store import ObjectStore
from tests.cluster_rig import NODE, PODS, Cluster, Joined, Object, condition
from tests.node_rig import container
from tests.waiting import eventually


async def test_a_pod_runs_reports_its_status_and_leaves_the_api_when_deleted(
    joined: Joined, cluster: Cluster
):
    await joined.start()
    await cluster.run("web")
    await cluster.run("other", node="n2")
    pod = await cluster.ready("web")
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["containerID"]
    await cluster.delete("web")
    await cluster.gone("web")
    other = await cluster.pod("other")
    assert other is not None
    assert other["status"]["phase"] == "Pending"


async def test_a_deleted_pod_leaves_the_api_before_its_dead_containers_leave_the_runtime(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    await joined.start()
    pod = await cluster.run("web", volumes=[{"name": "e", "emptyDir": {}}])
    await cluster.ready("web")
    may_go = asyncio.Event()

    async def remove(_: object) -> None:
        await may_go.wait()

    monkeypatch.setattr(hollow.backend, "remove_container", remove)
    await cluster.delete("web")
    await cluster.gone("web")
    (dead,) = hollow.service.records.containers.values()
    assert dead.state != 1
    assert not (joined.root / "pods" / pod["metadata"]["uid"]).exists()
    may_go.set()
    await eventually(lambda: not hollow.service.records.sandboxes)


async def test_an_unchanged_pod_sends_nothing_and_keeps_foreign_conditions(joined: Joined, cluster: Cluster):
    await joined.start()
    await cluster.run("web", readinessGates=[{"conditionType": "example.com/gate"}])
    await cluster.until("web", "Running")
    gate = {"type": "example.com/gate", "status": "True"}
    await cluster.client.patch(f"{PODS}/web/status", {"status": {"conditions": [gate]}}, Object)
    pod = await cluster.ready("web")
    assert condition(pod, "example.com/gate") == gate
    said = cluster.asked("PATCH", "web/status")
    label = {"metadata": {"labels": {"a": "b"}}}
    await cluster.client.patch(f"{PODS}/web", label, Object)
    await cluster.run("next")
    await cluster.ready("next")
    assert cluster.asked("PATCH", "web/status") == said
    assert joined.node is not None
    assert next(p for p in joined.node.pods() if p.metadata.name == "web").metadata.labels == {"a": "b"}


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "..", "a\0b"])
async def test_a_pod_with_names_that_would_escape_their_path_is_ignored(
    joined: Joined, cluster: Cluster, caplog: pytest.LogCaptureFixture, name: str
):
    """An API server refuses such names; if one accepts them, nothing else is harmed."""
    volumes = [{"name": name, "emptyDir": {}}]
    await cluster.run("listed", volumes=volumes)
    await joined.start()
    await cluster.run("heard", containers=[container(name)])
    await cluster.run("web")
    await cluster.ready("web")
    assert joined.node is not None
    assert [pod.metadata.name for pod in joined.node.pods()] == ["web"]
    assert {pod for pod in ("listed", "heard") if f"pod default/{pod} is ignored" in caplog.text} == {
        "listed",
        "heard",
    }


async def test_a_rejected_pod_has_failed_for_good(joined: Joined, cluster: Cluster):
    await joined.start()
    await cluster.run("big", containers=[container(resources={"requests": {"cpu": "9000"}})])
    pod = await cluster.until("big", "Failed")
    assert pod["status"]["reason"] == "OutOfcpu"
    assert pod["status"]["message"].startswith("Pod was rejected: ")
    await joined.restart()
    await cluster.run("next")
    await cluster.ready("next")
    assert await cluster.pod("big") == pod
    await cluster.delete("big")
    await cluster.gone("big")


async def test_an_extended_resource_that_another_client_advertises_is_counted(
    joined: Joined, cluster: Cluster
):
    await joined.start()
    amount = {"example.com/dongle": "2"}
    advertised = {"status": {"capacity": amount, "allocatable": amount}}
    await cluster.registered()
    await cluster.client.patch(f"{NODE}/status", advertised, Object)
    assert joined.node is not None
    description = joined.node.running.description
    await eventually(lambda: "example.com/dongle" in description.judging().status.allocatable)
    both = container(
        resources={"requests": {"example.com/dongle": "2"}, "limits": {"example.com/dongle": "2"}}
    )
    await cluster.run("both", containers=[both])
    await cluster.ready("both")
    one = container(
        resources={"requests": {"example.com/dongle": "1"}, "limits": {"example.com/dongle": "1"}}
    )
    await cluster.run("third", containers=[one])
    pod = await cluster.until("third", "Failed")
    assert pod["status"]["reason"] == "OutOfexample.com/dongle"


async def test_a_restarted_agent_restarts_no_container(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
):
    await joined.start()
    await cluster.run("web")
    before = await cluster.ready("web")
    assert joined.node is not None
    await joined.node.stop()
    await cluster.server.stop()
    await joined.start()
    assert [p.metadata.name for p in joined.node.pods()] == []
    assert [p.metadata.name for p in joined.node.running.running_pods()] == ["web"]
    await cluster.server.start()
    await eventually(lambda: [p.metadata.name for p in joined.node.pods()] == ["web"])  # type: ignore[union-attr]
    after = await cluster.ready("web")
    assert after["status"] == before["status"]


async def test_a_pod_deleted_while_no_agent_ran_ends_when_one_starts(joined: Joined, cluster: Cluster):
    await joined.start()
    await cluster.run("gone")
    await cluster.run("deleted")
    await cluster.ready("gone")
    await cluster.ready("deleted")
    assert joined.node is not None
    await joined.node.stop()
    await cluster.delete("deleted", grace=30)
    await cluster.delete("gone", grace=0)
    await joined.start()
    await cluster.gone("deleted")
    await eventually(lambda: joined.node.running.running_pods() == [])  # type: ignore[union-attr]


async def test_a_status_is_sent_again_until_the_server_accepts_it(joined: Joined, cluster: Cluster):
    for fault in (500, ApiServerFault.DROP):
        cluster.server.fail(fault, path="/pods/web/status", times=2)
    await joined.start()
    await cluster.run("web")
    await cluster.ready("web")


async def test_records_of_a_deleted_pod_stay_until_the_server_has_its_final_status(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
):
    await joined.start()
    await cluster.run("web")
    await cluster.ready("web")
    cluster.server.fail(500, path="/pods/web/status", times=None)
    await cluster.delete("web")
    sandboxes = hollow.service.records.sandboxes.values()
    await eventually(lambda: sandboxes and not any(s.state == READY for s in sandboxes))
    assert joined.node is not None
    await joined.restart()
    tried = cluster.asked("PATCH", "web/status")
    await eventually(lambda: cluster.asked("PATCH", "web/status") > tried)
    assert hollow.service.records.containers
    cluster.server.heal()
    await cluster.gone("web")
    last = [r for r in cluster.server.requests if r.method == "PATCH" and "web/status" in r.path][-1]
    ended = last.value["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) != (137, "ContainerStatusUnknown")
    await eventually(lambda: not hollow.service.records.containers)


async def test_removing_all_pods_does_not_wait_for_an_absent_server(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
):
    await joined.start()
    await cluster.run("web")
    await cluster.ready("web")
    await cluster.server.stop()
    assert joined.node is not None
    await joined.node.remove_all_pods()
    assert not hollow.service.records.containers
    await cluster.server.start()


async def test_a_pod_of_two_sources_stays_until_neither_wants_it(joined: Joined, cluster: Cluster):
    await joined.start()
    await cluster.run("web")
    await cluster.ready("web")
    assert joined.node is not None
    pods = joined.node.running.pods
    (pod,) = pods.all()
    pods.set_desired([pod])
    pods.remove_pod(pod.uid, API)
    assert not pods.is_terminating(pod.uid)
    pods.set_desired([])
    assert pods.is_terminating(pod.uid)


async def test_a_static_pod_is_mirrored_with_its_status_while_it_exists(joined: Joined, cluster: Cluster):
    path = joined.write("st", {"containers": [container()]})
    await joined.start()
    mirror = await cluster.ready("st-n1")
    owner = mirror["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", "n1", True)
    await cluster.delete("st-n1", grace=0)
    again = await cluster.ready("st-n1", other_than=mirror["metadata"]["uid"])
    assert again["status"]["containerStatuses"] == mirror["status"]["containerStatuses"]
    joined.write("st", {"containers": [container(args=["x"])]})
    await cluster.ready("st-n1", other_than=again["metadata"]["uid"])
    path.unlink()
    await cluster.gone("st-n1")


SLOW = {"runtime.kubengine.dev/stop-after": "1s"}


@pytest.mark.parametrize("edited", [False, True], ids=["deleted", "edited"])
async def test_the_mirror_of_a_static_pod_that_ends_stays_until_it_has_ended(
    joined: Joined, cluster: Cluster, edited: bool
):
    spec = {"terminationGracePeriodSeconds": 30, "containers": [container()]}
    path = joined.write("st", spec, annotations=SLOW)
    node = await joined.start()
    mirror = await cluster.ready("st-n1")
    (static,) = node.pods()
    if edited:
        joined.write("st", {**spec, "containers": [container(args=["x"])]}, annotations=SLOW)
    else:
        path.unlink()

    def gone(pod: Object | None) -> bool:
        here = pod is not None and pod["metadata"]["uid"] == mirror["metadata"]["uid"]
        assert here or not node.running.pods.may_run(static.uid)
        return not here

    await cluster.wait_for("st-n1", gone)
    if edited:
        await cluster.ready("st-n1")


async def test_a_static_pod_that_returns_gets_a_new_mirror(joined: Joined, cluster: Cluster):
    path = joined.write("st", {"containers": [container()]}, annotations=SLOW)
    await joined.start()
    mirror = await cluster.ready("st-n1")
    text = path.read_text()
    path.unlink()
    path.write_text(text)
    again = await cluster.ready("st-n1", other_than=mirror["metadata"]["uid"])
    (status,) = again["status"]["containerStatuses"]
    assert (again["status"]["phase"], status["restartCount"]) == ("Running", 1)


def cpu(milli: int) -> Object:
    return {"containers": [container(resources={"requests": {"cpu": f"{milli}m"}})]}


async def resize(cluster: Cluster, name: str, milli: int) -> None:
    await cluster.client.patch(f"{PODS}/{name}", {"spec": cpu(milli)}, Object)


async def test_a_resize_shows_in_the_api_while_it_waits_while_it_is_done_and_when_it_has_been(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    update, may_go = hollow.backend.update_resources, asyncio.Event()

    async def slow(*args: Any) -> None:
        await may_go.wait()
        await update(*args)

    monkeypatch.setattr(hollow.backend, "update_resources", slow)
    node = await joined.start()
    most = int(node.node_object().allocatable["cpu"].milli)
    await cluster.run("web", **cpu(100))
    await cluster.run("other", **cpu(most - 200))
    await cluster.ready("web")
    await cluster.ready("other")
    await resize(cluster, "web", 300)
    pod = await cluster.wait_for("web", lambda pod: bool(condition(pod or {}, "PodResizePending")))
    assert pod is not None
    pending = condition(pod, "PodResizePending")
    assert (pending["reason"], pending["observedGeneration"]) == ("Deferred", 2)
    assert pending["message"].startswith("Node didn't have enough resource: cpu, requested: 300, ")
    assert pending["lastProbeTime"]
    assert pod["status"]["containerStatuses"][0]["allocatedResources"] == {"cpu": "100m"}
    await cluster.delete("other")
    await cluster.wait_for("web", lambda pod: bool(condition(pod or {}, "PodResizeInProgress")))
    may_go.set()
    done = await cluster.wait_for("web", lambda pod: not condition(pod or {}, "PodResizeInProgress"))
    assert done is not None
    assert not condition(done, "PodResizePending")
    (shown,) = done["status"]["containerStatuses"]
    assert shown["allocatedResources"] == shown["resources"]["requests"] == {"cpu": "300m"}
    said = [(e.reason, e.message) for e in node.recorder if e.reason.startswith("Resize")]
    asked = '{"containers":[{"name":"c","resources":{"requests":{"cpu":"300m"}}}],"generation":2'
    assert [reason for reason, _ in said] == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]
    assert said[0][1].startswith(f'Pod resize OutOfcpu: {asked},"error":"Node didn\'t have enough')
    assert said[1][1] == f"Pod resize started: {asked}}}"
    assert said[2][1] == f"Pod resize completed: {asked}}}"


async def test_an_unevaluated_resize_is_not_reported_as_observed(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    update, may_go = hollow.backend.update_resources, asyncio.Event()

    async def slow(*args: Any) -> None:
        await may_go.wait()
        await update(*args)

    monkeypatch.setattr(hollow.backend, "update_resources", slow)
    joined.config.runtime_request_timeout = Duration(3)
    node = await joined.start()
    await cluster.run("web", **cpu(100))
    await cluster.ready("web")
    await resize(cluster, "web", 200)
    await cluster.wait_for("web", lambda pod: bool(condition(pod or {}, "PodResizeInProgress")))
    await resize(cluster, "web", 300)
    await cluster.wait_for("web", lambda pod: not condition(pod or {}, "PodResizeInProgress"))
    await cluster.client.patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}}, Object)
    await eventually(lambda: node.pods()[0].metadata.labels == {"a": "b"})
    pod = await cluster.pod("web")
    assert pod is not None
    assert (pod["metadata"]["generation"], pod["status"]["observedGeneration"]) == (3, 2)
    may_go.set()
    done = await cluster.wait_for("web", lambda pod: bool(pod and pod["status"]["observedGeneration"] == 3))
    assert done is not None
    assert condition(done, "PodResizeInProgress") or done["status"]["containerStatuses"][0]["resources"] == {
        "requests": {"cpu": "300m"}
    }


async def test_a_resize_that_waits_still_does_after_a_restart(joined: Joined, cluster: Cluster):
    node = await joined.start()
    most = int(node.node_object().allocatable["cpu"].milli)
    await cluster.run("web", **cpu(100))
    await cluster.ready("web")
    await resize(cluster, "web", most + 1)
    pod = await cluster.wait_for("web", lambda pod: bool(condition(pod or {}, "PodResizePending")))
    assert pod is not None
    assert condition(pod, "PodResizePending")["reason"] == "Infeasible"
    await joined.restart()
    await cluster.run("next")
    await cluster.ready("next")
    again = await cluster.pod("web")
    assert again is not None
    assert again["status"]["containerStatuses"] == pod["status"]["containerStatuses"]
    assert condition(again, "PodResizePending")["reason"] == "Infeasible"


async def test_a_pod_with_an_unsupported_field_is_rejected(joined: Joined, cluster: Cluster):
    await joined.start()
    await cluster.run("odd", resources={"claims": [{"name": "gpu"}]})
    pod = await cluster.until("odd", "Failed")
    assert pod["status"]["reason"] == "UnsupportedPodFields"
    assert "Pod was rejected: spec.resources.claims: " in pod["status"]["message"]


async def test_pods_unknown_to_a_restored_server_end_and_known_pods_keep_running(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
):
    """The API server returns from a backup of etcd, with its history marked as forgotten."""
    await joined.start()
    for name in ("stays", "again"):
        await cluster.run(name)
    kept = {name: await cluster.ready(name) for name in ("stays", "again")}
    backup = copy.deepcopy(cluster.server.objects._objects)
    await cluster.delete("again", grace=0)
    await eventually(lambda: len(hollow.service.records.sandboxes) == 1)
    other = await cluster.run("again")
    await cluster.run("unknown")
    for name in ("again", "unknown"):
        await cluster.ready(name)
    await cluster.server.stop()
    store = ObjectStore(time.time)
    store._objects = backup
    store.version = store.oldest = cluster.server.objects.version + 1000
    cluster.server.objects = store
    asked = len(cluster.server.requests)
    await cluster.server.start()
    wanted = {pod["metadata"]["uid"] for pod in kept.values()}
    await eventually(
        lambda: {s.config.metadata.uid for s in hollow.service.records.sandboxes.values()} == wanted
    )
    again = await cluster.ready("again")
    assert again["metadata"]["uid"] == kept["again"]["metadata"]["uid"] != other["metadata"]["uid"]
    assert (await cluster.pod("stays") or {})["status"] == kept["stays"]["status"]
    said = [r for r in cluster.server.requests[asked:] if "/pods/" in r.path and r.method != "GET"]
    assert all(r.method == "PATCH" and r.path == f"{PODS}/again/status" for r in said)
    assert {r.value["metadata"]["uid"] for r in said} <= {again["metadata"]["uid"]}


async def test_a_rejected_static_pod_is_tried_again_when_the_node_s_labels_change(
    joined: Joined, cluster: Cluster
):
    await joined.start()
    joined.write("picky", {"containers": [container()], "nodeSelector": {"disk": "ssd"}})
    await eventually(lambda: joined.phase("picky") == "Failed")
    assert joined.pod("picky").status.reason == "NodeAffinity"
    await cluster.registered()
    await cluster.client.patch(NODE, {"metadata": {"labels": {"disk": "ssd"}}}, dict[str, Any])
    await eventually(lambda: joined.phase("picky") == "Running")
