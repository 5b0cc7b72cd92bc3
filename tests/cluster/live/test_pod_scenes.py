"""Pods of a cluster and what befalls them, on the test server, and on a real one where KUBE_BIN says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from tests.cluster.control_plane import Object
from tests.cluster.scenes import PODS, Scene, conditions, is_ready
from tests.devices.device_rig import GPU
from tests.node_rig import container
from tests.waiting import eventually

CRITICAL = {"priorityClassName": "system-node-critical", "priority": 2000001000}
MANY = 60


async def test_many_pods_are_ready_outlive_their_agent_and_go_when_they_are_deleted(scene: Scene):
    for number in range(MANY):
        await scene.run(f"web-{number}")
    before = await scene.all_ready(MANY)
    await scene.restart()
    await scene.run("later")
    after = await scene.all_ready(MANY + 1)
    assert {name: after[name]["status"] for name in before} == {
        name: pod["status"] for name, pod in before.items()
    }
    assert scene.starts() == MANY + 1
    await asyncio.gather(*map(scene.delete, after))
    await scene.none_left()
    await eventually(lambda: not scene.runtime.service.records.sandboxes)


async def test_the_victim_of_a_critical_pod_shows_that_it_was_disrupted(scene: Scene):
    most = int(scene.node.node_object().allocatable["cpu"].milli)  # type: ignore[union-attr]
    amount = {"resources": {"requests": {"cpu": f"{most - 100}m"}}}
    await scene.run("victim", containers=[container(**amount)])
    await scene.wait_for("victim", is_ready)
    await scene.run("critical", containers=[container(**amount)], **CRITICAL)
    await scene.wait_for("critical", is_ready)
    victim = await scene.wait_for("victim", lambda pod: pod["status"]["phase"] == "Failed")
    assert victim["status"]["reason"] == "Preempting"
    disruption = conditions(victim)["DisruptionTarget"]
    assert (disruption["status"], disruption["reason"]) == ("True", "TerminationByKubelet")
    assert disruption["message"] == "Pod was preempted by Kubelet to accommodate a critical pod."
    (ended,) = victim["status"]["containerStatuses"]
    assert ended["state"]["terminated"]["exitCode"] == 143


async def test_a_pod_that_uses_too_much_shows_that_it_was_evicted(scene: Scene):
    volume = {"name": "e", "emptyDir": {"sizeLimit": "32Ki"}}
    mounted = container(volumeMounts=[{"name": "e", "mountPath": "/e"}])
    pod = await scene.run("greedy", containers=[mounted], volumes=[volume])
    await scene.wait_for("greedy", is_ready)
    directory = scene.root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/e"
    (directory / "file").write_bytes(os.urandom(64 * 1024))
    evicted = await scene.wait_for("greedy", lambda pod: pod["status"]["phase"] == "Failed")
    assert evicted["status"]["reason"] == "Evicted"
    assert evicted["status"]["message"] == 'Usage of EmptyDir volume "e" exceeds the limit "32Ki". '
    assert conditions(evicted)["Ready"]["reason"] == "PodFailed"
    assert "DisruptionTarget" not in conditions(evicted)


async def test_a_pod_shows_its_devices_through_restarts_of_agent_and_plugin(scene: Scene):
    plugin = await scene.plugin(2)
    await scene.run("gpu", containers=[container(resources={"limits": {GPU: 1}})])
    pod = await scene.wait_for("gpu", is_ready)
    (held,) = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert held["name"] == GPU
    assert [device["health"] for device in held["resources"]] == ["Healthy"]

    def shows(health: str) -> Callable[[Object], bool]:
        wanted = [{**held, "resources": [{**held["resources"][0], "health": health}]}]
        return lambda pod: pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"] == wanted

    await plugin.stop()
    await scene.wait_for("gpu", shows("Unhealthy"))
    await plugin.start()
    plugin.follow(scene.plugin_dir)
    await scene.wait_for("gpu", shows("Healthy"))
    await scene.restart()
    await eventually(lambda: scene.allocatable() == 2)
    await scene.run("later")
    await scene.wait_for("later", is_ready)
    assert shows("Healthy")((await scene.pods())["gpu"])
    assert scene.starts() == 2


@pytest.mark.parametrize("away", [False, True], ids=["agent-there", "agent-away"])
async def test_a_pod_with_another_uid_replaces_the_pod_of_the_same_name(scene: Scene, away: bool):
    first = await scene.run("web")
    await scene.wait_for("web", is_ready)
    if away:
        await scene.stop()
    await scene.delete("web", grace=0)
    second = await scene.run("web")
    if away:
        await scene.start()
    pod = await scene.wait_for("web", is_ready)
    assert pod["metadata"]["uid"] == second["metadata"]["uid"] != first["metadata"]["uid"]
    uids = {s.config.metadata.uid for s in scene.runtime.service.records.sandboxes.values()}
    assert uids == {second["metadata"]["uid"]}
    (running,) = pod["status"]["containerStatuses"]
    assert (running["restartCount"], running["lastState"]) == (0, {})


async def test_containers_of_each_kind_are_resized_while_they_run(scene: Scene):
    def amounts(milli: int) -> Object:
        return {"resources": {"requests": {"cpu": f"{milli}m"}}}

    init = [container("side", restartPolicy="Always", **amounts(100)), container("init", **amounts(100))]
    await scene.run("web", initContainers=init, containers=[container("app", **amounts(100))])

    def has(kind: str, name: str, milli: int) -> Callable[[Object], bool]:
        def holds(pod: Object) -> bool:
            shown = {each["name"]: each for each in pod["status"].get(f"{kind}Statuses", ())}.get(name, {})
            asked = {"cpu": f"{milli}m"}
            allocated = shown.get("allocatedResources") == asked
            return allocated and shown.get("resources", {}).get("requests") == asked

        return holds

    async def resize(field: str, kind: str, name: str) -> None:
        await scene.wait_for("web", has(kind, name, 100))
        spec = {field: [{"name": name, **amounts(300)}]}
        await scene.plane.admin.patch(f"{PODS}/web/resize", {"spec": spec}, Object)
        await scene.wait_for("web", has(kind, name, 300))

    await resize("initContainers", "initContainer", "side")
    await resize("initContainers", "initContainer", "init")
    held = scene.runtime.service.records.containers.values()
    (running,) = (c for c in held if c.config.metadata.name == "init")
    scene.runtime.end_container(running.id, exit_code=0)
    await resize("containers", "container", "app")
    pod = await scene.wait_for("web", is_ready)
    statuses = [*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"]]
    assert {each["restartCount"] for each in statuses} == {0}
    assert not {"PodResizePending", "PodResizeInProgress"} & conditions(pod).keys()
