"""Pods of a cluster and what befalls them, on the test server, and on a real one where KUBE_BIN says so."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiError
from engine.node import Node
from engine.runtime.hollow import HollowRuntime
from tests.cluster.control_plane import Object, Plane
from tests.devices.device_bench import GPU, DeviceBench
from tests.node_bench import container
from tests.waiting import PATIENCE, eventually

PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/n1"
CRITICAL = {"priorityClassName": "system-node-critical", "priority": 2000001000}
MANY = 60


class Scene(DeviceBench):
    """A node of a cluster on the hollow runtime, its plugins, and what users do with the API."""

    def __init__(self, directory: Path, runtime: HollowRuntime, plane: Plane) -> None:
        super().__init__(directory, runtime)
        self.plane = plane
        self.config.node_lease_duration_seconds = 1
        self.section.eviction.interval = 0.2

    async def start(self) -> Node:
        self.node = Node(
            config=self.config,
            kubengine_config=self.section,
            runtime_endpoint=str(self.endpoint),
            root=self.root,
            name="n1",
            kubeconfig=self.plane.node,
        )
        await self.node.start()
        return self.node

    async def run(self, name: str, **spec: Any) -> Object:
        """The server may refuse pods until it knows its own default objects."""
        wanted = {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container()],
            **spec,
        }
        value = {"metadata": {"name": name}, "spec": wanted}
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await self.plane.admin.create(PODS, value, Object)
                except ApiError as error:
                    if error.code != 403 or "service account" not in str(error):
                        raise
                await self._make_account()

    async def _make_account(self) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts"
        try:
            await self.plane.admin.create(path, {"metadata": {"name": "default"}}, Object)
        except ApiError as error:
            if error.code != 409:
                raise
        await asyncio.sleep(0.1)

    async def pods(self) -> dict[str, Object]:
        listed = await self.plane.admin.get(PODS, Object)
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    async def when(self, name: str, holds: Callable[[Object], bool]) -> Object:
        """The pod, once it is there and something holds of it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                pod = (await self.pods()).get(name)
                if pod is not None and holds(pod):
                    return pod
                await asyncio.sleep(0.05)

    async def all_ready(self, count: int) -> dict[str, Object]:
        async def ready() -> bool:
            return sum(map(is_ready, (await self.pods()).values())) == count

        await eventually(ready, every=0.1)
        return await self.pods()

    async def delete(self, name: str, grace: int = 1) -> None:
        await self.plane.admin.delete(f"{PODS}/{name}", {"gracePeriodSeconds": grace})

    async def none_left(self) -> None:
        async def empty() -> bool:
            return not await self.pods()

        await eventually(empty)

    def starts(self) -> int:
        return self.runtime.counts()["StartContainer"]["calls"]


def is_ready(pod: Object) -> bool:
    return conditions(pod).get("Ready", {}).get("status") == "True"


def conditions(pod: Object) -> dict[str, Object]:
    return {each["type"]: each for each in pod.get("status", {}).get("conditions", ())}


@pytest.fixture
async def scene(plane: Plane) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            scene = Scene(Path(short), runtime, plane)
            await scene.start()
            yield scene
            for name in await scene.pods():
                await scene.delete(name, grace=0)
            await scene.none_left()
            for plugin in scene.plugins:
                await plugin.stop()
            await scene.stop()


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
    await scene.when("victim", is_ready)
    await scene.run("critical", containers=[container(**amount)], **CRITICAL)
    await scene.when("critical", is_ready)
    victim = await scene.when("victim", lambda pod: pod["status"]["phase"] == "Failed")
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
    await scene.when("greedy", is_ready)
    directory = scene.root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/e"
    (directory / "file").write_bytes(os.urandom(64 * 1024))
    evicted = await scene.when("greedy", lambda pod: pod["status"]["phase"] == "Failed")
    assert evicted["status"]["reason"] == "Evicted"
    assert evicted["status"]["message"] == 'Usage of EmptyDir volume "e" exceeds the limit "32Ki". '
    assert conditions(evicted)["Ready"]["reason"] == "PodFailed"
    assert "DisruptionTarget" not in conditions(evicted)


async def test_a_pod_shows_its_devices_through_restarts_of_agent_and_plugin(scene: Scene):
    plugin = await scene.plugin(2)
    await scene.run("gpu", containers=[container(resources={"limits": {GPU: 1}})])
    pod = await scene.when("gpu", is_ready)
    (held,) = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert held["name"] == GPU
    assert [device["health"] for device in held["resources"]] == ["Healthy"]

    def shows(health: str) -> Callable[[Object], bool]:
        wanted = [{**held, "resources": [{**held["resources"][0], "health": health}]}]
        return lambda pod: pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"] == wanted

    await plugin.stop()
    await scene.when("gpu", shows("Unhealthy"))
    await plugin.start()
    plugin.follow(scene.plugin_dir)
    await scene.when("gpu", shows("Healthy"))
    await scene.restart()
    await eventually(lambda: scene.allocatable() == 2)
    await scene.run("later")
    await scene.when("later", is_ready)
    assert shows("Healthy")((await scene.pods())["gpu"])
    assert scene.starts() == 2


@pytest.mark.parametrize("away", [False, True], ids=["agent-there", "agent-away"])
async def test_a_pod_of_another_uid_takes_the_place_of_its_namesake(scene: Scene, away: bool):
    first = await scene.run("web")
    await scene.when("web", is_ready)
    if away:
        await scene.stop()
    await scene.delete("web", grace=0)
    second = await scene.run("web")
    if away:
        await scene.start()
    pod = await scene.when("web", is_ready)
    assert pod["metadata"]["uid"] == second["metadata"]["uid"] != first["metadata"]["uid"]
    uids = {s.config.metadata.uid for s in scene.runtime.service.records.sandboxes.values()}
    assert uids == {second["metadata"]["uid"]}
    (running,) = pod["status"]["containerStatuses"]
    assert (running["restartCount"], running["lastState"]) == (0, {})
