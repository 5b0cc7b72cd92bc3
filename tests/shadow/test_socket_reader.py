"""Images, and what uses them, as a runtime serves them; resources as an agent's pod-resources API does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.errors import Unavailable
from engine.cri.client import RuntimeClient
from engine.devices.checkpoint import CheckpointEntry
from engine.devices.pod_resources import PodResourcesServer
from engine.devices.state import DeviceState
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.runtime.hollow import HollowRuntime
from engine.shadow.kinds.observation import FileSystem
from engine.shadow.socket_reader import PodResourcesReader, RuntimeImages
from tests.shadow.observations import pod

GPU = "example.com/gpu"


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ks-") as directory:
        yield Path(directory)


async def test_images_are_read_with_their_users(short: Path) -> None:
    mounting = pod("p", {"volumes": [{"name": "v", "image": {"reference": "docker.io/library/two:1"}}]})
    async with HollowRuntime(short / "cri.sock") as runtime:
        for name in ("one", "two", "three"):
            runtime.images.add(f"docker.io/library/{name}:1")
        client = RuntimeClient(f"unix://{short}/cri.sock")
        try:
            reader = RuntimeImages(client)
            first = await reader.read([mounting], FileSystem(100, 40))
            again = await reader.read([], FileSystem())
        finally:
            await client.close()
    used = [image.names[0] for image in first.images if first.uses(image)]
    assert used == ["docker.io/library/two:1"]
    assert first.filesystem.available == 40
    assert all(one is other for one, other in zip(first.images, again.images, strict=True))
    assert not any(map(again.uses, again.images))
    # What the kubelet does not measure is read where the runtime says that the images are.
    capacity = again.filesystem.capacity
    assert capacity is not None
    assert capacity > 100


async def test_both_answers_of_the_api_are_read(short: Path) -> None:
    one, state, tasks = pod("p"), DeviceState(), Tasks()
    state.claim(GPU, ["a"])
    held = CheckpointEntry(pod_uid=one.uid, container_name="c", resource_name=GPU, device_ids={-1: ["a"]})
    state.assign(held)
    server = PodResourcesServer(
        short / "pod-resources", state, active=lambda: [one], listed=lambda: [one], collect=lambda: None,
        registry=Registry(), tasks=tasks,
    )  # fmt: skip
    server.claim()
    await server.start()
    reader = PodResourcesReader(short)
    try:
        seen = await reader.read()
    finally:
        reader.close()
        await server.stop()
    (container,) = seen.pods["default/p"].containers
    assert [(device.resource_name, *device.device_ids) for device in container.devices] == [(GPU, "a")]
    assert not seen.allocatable.devices


async def test_a_kubelet_without_the_socket_is_named(short: Path) -> None:
    reader = PodResourcesReader(short)
    try:
        with pytest.raises(Unavailable) as failed:
            await reader.read()
    finally:
        reader.close()
    assert failed.value.subject == f"{short}/pod-resources/kubelet.sock"
