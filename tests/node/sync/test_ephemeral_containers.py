"""Ephemeral containers: added to a pod that runs, begun once, and never counted in what the pod is."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api.errors import InvalidInput
from engine.api.pod import EphemeralContainer, Pod
from engine.api.qos import qos_class
from engine.api.resources import pod_requests
from engine.cri.records import CREATED, EXITED, RUNNING, UNKNOWN, PodRecord
from engine.node.logs.container_logs import spec_of
from engine.node.pod.life import Waiting
from engine.node.spec.cri_config import container_hash
from engine.node.sync.actions import compute_pod_actions
from engine.node.sync.ephemeral_containers import target_id
from engine.runtime.hollow import HollowRuntime
from engine.runtime.objects.records import RuntimeContainer
from engine.wire import cri_v1_pb2 as cri
from tests.cluster_rig import PODS, Cluster, Joined, Object
from tests.node.spec.test_cri_config import pod_of, security
from tests.node.sync.test_actions import HEALTHY
from tests.node.sync.test_pod_status import copy, record, shown
from tests.node_rig import container
from tests.waiting import eventually

ENDS = "runtime.kubengine.dev/exit-"


def debugged(*names: str, **spec: Any) -> Pod:
    """Return a pod with ephemeral containers of these names."""
    pod = pod_of({"containers": [container()], **spec})
    pod.spec.ephemeral_containers = [EphemeralContainer(name=name, image="busybox:1") for name in names]
    return pod


def starts(pod: Pod, found: PodRecord) -> list[str]:
    actions = compute_pod_actions(pod, found, health=lambda _: HEALTHY, spec_hash=container_hash)
    return [each.name for each in actions.start]


# What is decided


def test_an_added_ephemeral_container_starts_in_the_existing_sandbox():
    running = copy("c", RUNNING)
    assert starts(debugged("d", "e"), record(running)) == ["d", "e"]
    assert starts(debugged("d", "e"), record(running, copy("d", RUNNING))) == ["e"]


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
@pytest.mark.parametrize("state", [RUNNING, UNKNOWN, EXITED])
def test_termination_starts_once(policy: str, state: int):
    pod = debugged("d", restartPolicy=policy)
    assert starts(pod, record(copy("c", RUNNING), copy("d", state, 1))) == []


def test_an_ephemeral_container_with_an_interrupted_start_never_ran():
    assert starts(debugged("d"), record(copy("c", RUNNING), copy("d", CREATED))) == ["d"]


def test_one_that_the_runtime_has_lost_does_not_begin_again():
    pod = debugged("d")
    shown(pod, record(copy("c", RUNNING), copy("d", RUNNING)))
    assert starts(pod, record(copy("c", RUNNING))) == []
    pod.status.ephemeral_container_statuses = None
    assert starts(pod, record(copy("c", RUNNING))) == ["d"]


def test_init_containers_do_not_hold_it_up():
    pod = debugged("d", initContainers=[container("i")])
    assert starts(pod, record(copy("i", RUNNING))) == ["d"]
    assert starts(pod, record(copy("i", EXITED, 1))) == ["d", "i"]


def test_it_waits_for_a_sandbox_and_does_not_follow_the_pod_to_another():
    pod = debugged("d")
    assert starts(pod, PodRecord("u", "", "")) == ["c"]
    assert starts(pod, record(copy("c", EXITED), copy("d", EXITED), ready=False)) == ["c"]


def test_a_pod_ends_while_its_ephemeral_container_still_runs():
    pod = debugged("d", restartPolicy="Never")
    found = record(copy("c", EXITED), copy("d", RUNNING))
    actions = compute_pod_actions(pod, found, health=lambda _: HEALTHY, spec_hash=container_hash)
    assert actions.finished
    assert actions.kill_pod
    assert not actions.start


def test_its_target_is_a_container_that_the_runtime_holds():
    running = copy("c", RUNNING)
    aiming = EphemeralContainer(name="d", target_container_name="c")
    assert target_id(aiming, record(running)) == running.id
    assert target_id(EphemeralContainer(name="d"), record(running)) == ""
    with pytest.raises(InvalidInput, match="unable to find target container c"):
        target_id(aiming, record())


@pytest.mark.parametrize(
    ("spec", "mode"),
    [({}, cri.TARGET), ({"shareProcessNamespace": True}, cri.POD), ({"hostPID": True}, cri.NODE)],
)
def test_it_sees_the_processes_of_its_target_where_each_has_its_own(spec: dict[str, Any], mode: int):
    options = security(pod_of(spec), target_id="t").namespace_options
    assert options.pid == mode
    assert options.target_id == ("t" if mode == cri.TARGET else "")
    assert security(pod_of({})).namespace_options.pid == cri.CONTAINER


# What is said


def test_ephemeral_containers_are_shown_separately_and_excluded_from_totals():
    plain = shown(pod_of({"containers": [container()]}), record(copy("c", RUNNING)))
    found = record(copy("c", RUNNING), copy("d", EXITED, 7))
    status = shown(debugged("d", "e"), found, waiting={"e": Waiting("ErrImagePull", "none")})
    ended, waiting = status.pop("ephemeralContainerStatuses")
    assert status == plain
    assert ended["state"]["terminated"]["exitCode"] == 7
    assert (ended["ready"], "started" in ended, ended["restartCount"]) == (False, False, 0)
    assert waiting["state"] == {"waiting": {"reason": "ErrImagePull", "message": "none"}}
    running = shown(debugged("d"), record(copy("c", RUNNING), copy("d", RUNNING)))
    assert "running" in running["ephemeralContainerStatuses"][0]["state"]
    assert running["ephemeralContainerStatuses"][0]["ready"] is False


def test_the_end_of_one_that_the_runtime_has_lost_stays_known():
    pod, rest = debugged("d", "e"), copy("c", RUNNING)
    shown(pod, record(rest, copy("d", EXITED, 7), copy("e", RUNNING)))
    for _ in range(2):
        ended, lost = shown(pod, record(rest))["ephemeralContainerStatuses"]
        assert ended["state"]["terminated"]["exitCode"] == 7
        assert lost["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
        assert lost["state"]["terminated"]["exitCode"] == 137


def test_class_and_amounts_are_the_pods_own():
    amounts = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    plain = pod_of({"containers": [container(resources=amounts)]})
    pod = debugged("d", containers=[container(resources=amounts)])
    assert qos_class(pod) == qos_class(plain) == "Guaranteed"
    assert pod_requests(pod) == pod_requests(plain)


def test_it_is_found_by_name():
    pod = debugged("d")
    pod.spec.ephemeral_containers[0].tty = True
    found = spec_of(pod, "d")
    assert found is not None
    assert found.tty


# What is done


async def debug(cluster: Cluster, pod: str, *containers: Object) -> None:
    wanted = [{"image": "busybox:1", "imagePullPolicy": "IfNotPresent", **each} for each in containers]
    await cluster.client.patch(
        f"{PODS}/{pod}/ephemeralcontainers", {"spec": {"ephemeralContainers": wanted}}, Object
    )


async def shown_as(cluster: Cluster, pod: str, name: str, state: str) -> Object:
    """Wait until an ephemeral container is in `state`, and return its status."""

    def of(found: Object | None) -> Object:
        statuses = (found or {}).get("status", {}).get("ephemeralContainerStatuses") or ()
        return next((each for each in statuses if each["name"] == name), {})

    found = await cluster.wait_for(pod, lambda found: state in of(found).get("state", {}))
    return of(found)


def of_name(hollow: HollowRuntime, name: str) -> list[RuntimeContainer]:
    return [c for c in hollow.service.records.containers.values() if c.config.metadata.name == name]


async def run(cluster: Cluster, name: str = "web", annotations: Object | None = None, **spec: Any) -> Object:
    value = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 1, "containers": [container()], **spec},
    }
    await cluster.client.create(PODS, value, Object)
    return await cluster.ready(name)


async def test_an_added_ephemeral_container_runs_in_the_pod(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
):
    await joined.start()
    before = await run(cluster)
    (main,) = of_name(hollow, "c")
    wanted = {
        "name": "debugger",
        "targetContainerName": "c",
        "stdin": True,
        "tty": True,
        "env": [{"name": "A", "value": "b"}],
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
    }
    await debug(cluster, "web", wanted)
    status = await shown_as(cluster, "web", "debugger", "running")
    (made,) = of_name(hollow, "debugger")
    assert status["containerID"].endswith(made.id)
    assert made.sandbox is main.sandbox
    assert (made.config.stdin, made.config.tty) == (True, True)
    assert {e.key: e.value for e in made.config.envs}["A"] == b"b"
    context = made.config.linux.security_context
    assert context.capabilities.add_capabilities == ["SYS_PTRACE"]
    assert context.namespace_options.pid == cri.TARGET
    assert context.namespace_options.target_id == main.id
    after = await cluster.ready("web")
    after["status"].pop("ephemeralContainerStatuses")
    assert without_generation(after["status"]) == without_generation(before["status"])
    assert joined.node is not None
    started = [e for e in joined.node.recorder if e.container == "debugger" and e.reason == "Started"]
    assert [event.field_path for event in started] == ["spec.ephemeralContainers{debugger}"]
    await cluster.delete("web")
    await cluster.gone("web")
    await eventually(lambda: not hollow.service.records.containers)


def without_generation(status: Object) -> Object:
    conditions = [
        {key: value for key, value in each.items() if key != "observedGeneration"}
        for each in status["conditions"]
    ]
    return {**status, "conditions": conditions, "observedGeneration": 0}


async def test_one_that_has_ended_stays_so_with_another_agent_too(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
):
    await joined.start()
    await run(cluster, annotations={f"{ENDS}after.first": "10ms", f"{ENDS}code.first": "3"})
    await debug(cluster, "web", {"name": "first"})
    status = await shown_as(cluster, "web", "first", "terminated")
    assert status["state"]["terminated"]["exitCode"] == 3
    (dead,) = of_name(hollow, "first")
    await joined.stop()
    del hollow.service.records.containers[dead.id]
    await joined.start()
    await debug(cluster, "web", {"name": "first"}, {"name": "second"})
    await shown_as(cluster, "web", "second", "running")
    assert of_name(hollow, "first") == []
    known = await shown_as(cluster, "web", "first", "terminated")
    assert known["state"]["terminated"] == status["state"]["terminated"]
    await joined.restart()
    await debug(cluster, "web", {"name": "first"}, {"name": "second"}, {"name": "third"})
    await shown_as(cluster, "web", "third", "running")
    assert [c.config.metadata.attempt for c in of_name(hollow, "second")] == [0]
    assert len(of_name(hollow, "c")) == 1


async def test_one_that_was_added_while_no_agent_was_there_starts(joined: Joined, cluster: Cluster):
    await joined.start()
    await run(cluster)
    await joined.stop()
    await debug(cluster, "web", {"name": "late"})
    await joined.start()
    await shown_as(cluster, "web", "late", "running")


async def test_a_missing_image_or_target_is_reported_and_delays_no_other_container(
    joined: Joined, cluster: Cluster
):
    await joined.start()
    await run(cluster)
    missing = {"name": "missing", "image": "nowhere:1", "imagePullPolicy": "Never"}
    await debug(cluster, "web", missing, {"name": "lost", "targetContainerName": "x"}, {"name": "good"})
    await shown_as(cluster, "web", "good", "running")
    found = [await shown_as(cluster, "web", name, "waiting") for name in ("missing", "lost")]
    reasons = [each["state"]["waiting"]["reason"] for each in found]
    assert reasons == ["ErrImageNeverPull", "CreateContainerConfigError"]
    assert "unable to find target container x" in found[1]["state"]["waiting"]["message"]
    await cluster.ready("web")


async def test_a_volume_that_only_it_mounts_is_made(joined: Joined, cluster: Cluster, hollow: HollowRuntime):
    await joined.start()
    pod = await run(cluster, volumes=[{"name": "v", "emptyDir": {}}])
    await debug(cluster, "web", {"name": "d", "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    await shown_as(cluster, "web", "d", "running")
    (made,) = of_name(hollow, "d")
    (path,) = (mount.host_path for mount in made.config.mounts if mount.container_path == "/v")
    assert path == str(joined.root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/v")


async def test_a_path_that_is_no_device_fails_only_its_own_volume(joined: Joined, cluster: Cluster):
    await joined.start()
    await run(cluster, volumes=[{"name": "v", "emptyDir": {}}])
    await debug(cluster, "web", {"name": "d", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]})
    said = 'Error: cannot find volume "v" to pass into container "d"'
    await eventually(lambda: said in [event.message for event in joined.node.recorder])
    await cluster.ready("web")


async def test_a_deferred_resize_does_not_delay_another(joined: Joined, cluster: Cluster):
    await joined.start()
    small, huge = ({"requests": {"cpu": cpu}} for cpu in ("1m", "100000"))
    await run(cluster, containers=[container(resources=small)])
    await joined.stop()
    resized = {"spec": {"containers": [{"name": "c", "resources": huge}]}}
    await cluster.client.patch(f"{PODS}/web/resize", resized, Object)
    await debug(cluster, "web", {"name": "d"})
    await joined.start()
    await shown_as(cluster, "web", "d", "running")
    assert joined.node is not None
    (pod,) = joined.node.pods()
    assert str(pod.spec.containers[0].requests["cpu"]) == "1m"
