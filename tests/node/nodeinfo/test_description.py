"""The node object: over the real server, in the shape that kubectl prints, read back as a planner does."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from engine.api.documents import convert
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.node import Node, Taint
from engine.cli.agent.client import AgentClient
from engine.cli.agent.paths import SOCKET_NAME
from engine.node.nodeinfo import description
from engine.node.nodeinfo.description import node_images
from engine.node.nodeinfo.machine import node_labels
from engine.runtime.hollow import HollowRuntime
from engine.server import HttpServer
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig, container
from tests.waiting import eventually


async def _ask(rig: Rig) -> dict[str, object]:
    server = HttpServer(rig.node, socket_path=rig.root / SOCKET_NAME)
    await server.start()
    try:
        return await asyncio.to_thread(AgentClient(str(rig.root)).describe, "node")
    finally:
        await server.stop()


@pytest.fixture
def described(rig: Rig) -> Rig:
    rig.config = msgspec.structs.replace(
        rig.config,
        enable_server=False,
        healthz_port=0,
        register_with_taints=[Taint(key="dedicated", value="gpu", effect="NoSchedule")],
        provider_id="rack://7",
    )
    rig.section = KubengineConfiguration(node_labels={"disk": "ssd"})
    return rig


async def test_a_runtime_that_hangs_leaves_the_node_without_images(
    described: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    node = await described.start()
    assert (await node.running.description.complete()).status.images is not None
    monkeypatch.setattr(description, "IMAGES_SECONDS", 0.05)
    parts = replace(node.running.description._parts, images=asyncio.Event().wait)
    monkeypatch.setattr(node.running.description, "_parts", parts)
    complete = asyncio.create_task(node.running.description.complete())
    await eventually(complete.done)
    assert complete.result().status.images is None
    assert complete.result().status.capacity["pods"]


async def test_the_node_is_shown_as_kubectl_shows_it(described: Rig, hollow: HollowRuntime):
    hollow.images.add("small:1", size=10)
    hollow.images.add("large:1", size=1000)
    node = await described.start()
    described.write("web", {"containers": [container()]})
    await eventually(lambda: described.phase("web") == "Running")
    shown = await _ask(described)
    assert (shown["apiVersion"], shown["kind"]) == ("v1", "Node")
    assert shown["metadata"]["name"] == "n1"
    assert shown["metadata"]["labels"].items() >= {"kubernetes.io/hostname": "n1", "disk": "ssd"}.items()
    assert shown["spec"] == {
        "providerID": "rack://7",
        "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}],
    }
    status = shown["status"]
    assert status["capacity"]["pods"] == status["allocatable"]["pods"] == "110"
    assert set(status["capacity"]) >= {"cpu", "memory", "ephemeral-storage"}
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    sizes = {image["names"][-1]: image["sizeBytes"] for image in status["images"]}
    assert sizes.items() >= {"docker.io/library/small:1": 10, "docker.io/library/large:1": 1000}.items()
    assert status["images"] == sorted(status["images"], key=lambda image: -image["sizeBytes"])
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("kubengine-hollow://")
    assert status["declaredFeatures"] == [
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ]
    read = convert(shown, Node, "node")
    assert read.spec == node.node_object().spec
    assert read.allocatable == node.node_object().allocatable


async def test_without_its_runtime_a_node_is_not_ready_and_reports_no_images(
    described: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.images.manager.IMAGE_CACHE_PERIOD", 0.0)
    await described.start()
    hollow.images.add("small:1")
    assert "images" in (await _ask(described))["status"]
    monkeypatch.setattr("engine.node.runtime_view.runtime_watch.UNHEALTHY_AFTER_SECONDS", -1000.0)
    await hollow._server.stop()
    try:
        shown = await _ask(described)
    finally:
        await hollow._server.start()
    assert "images" not in shown["status"]
    assert shown["status"]["capacity"]["pods"] == "110"
    ready = next(c for c in shown["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "KubeletNotReady")
    assert "the runtime was last read" in ready["message"]


def test_as_many_images_as_the_configuration_allows_the_largest_first():
    images = [
        cri.Image(repo_tags=[f"i:{n}"], repo_digests=[f"i@sha256:{n}{d}" for d in range(5)], size=n)
        for n in range(4)
    ]
    assert [image.size_bytes for image in node_images(images, 2)] == [3, 2]
    assert len(node_images(images, -1)) == 4
    assert node_images(images, 1)[0].names == [f"i@sha256:3{d}" for d in range(5)]


async def test_conditions_are_made_in_whole_seconds(rig: Rig):
    node = await rig.start()
    conditions = node.node_object().status.conditions
    assert len(conditions) == 4
    for condition in conditions:
        assert condition.last_heartbeat_time.microsecond == 0
        assert condition.last_transition_time.microsecond == 0


@pytest.mark.parametrize(
    ("machine", "name"),
    [("x86_64", "amd64"), ("armv7l", "arm"), ("i686", "386"), ("loongarch64", "loong64"), ("s390x", "s390x")],
)
def test_labels_name_the_architecture_as_images_do(
    monkeypatch: pytest.MonkeyPatch, machine: str, name: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert node_labels("n")["kubernetes.io/arch"] == name
