"""Pulls: their bound, what they must not hold up, their deadline, and the images of volumes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.kubengine_config import ImagesSection, KubengineConfiguration
from engine.cri.client import RuntimeClient
from engine.node.images.pull import PULLS_AT_ONCE, failed_pull, pulls_at_once
from engine.node.pod.life import Waiting
from engine.node.volumes.image import MOUNTS, SUB_PATHS, too_old
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.server import CriServer
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig, container
from tests.waiting import eventually


class Registry:
    """Hold pulls of names that contain `slow` until `open` is set, and count concurrent pulls."""

    def __init__(self, hollow: HollowRuntime) -> None:
        self.open = asyncio.Event()
        self.begun: list[str] = []
        self.now = 0
        self.most = 0
        self._pull = hollow.images.pull

    async def pull(self, reference: str) -> cri.Image:
        self.begun.append(reference)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if "slow" in reference:
                await self.open.wait()
        finally:
            self.now -= 1
        return await self._pull(reference)


@pytest.fixture
async def registry(hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registry]:
    registry = Registry(hollow)
    monkeypatch.setattr(hollow.images, "pull", registry.pull)
    yield registry
    registry.open.set()


def waiting(rig: Rig, name: str) -> Any:
    pod = rig.pod(name)
    states = [s.state.waiting for s in (pod.status.container_statuses if pod else None) or []]
    return states[0] if states else None


def pulled(rig: Rig, name: str) -> tuple[float, float]:
    """Return the seconds in a pod's Pulled event: those of the pull, and those with the wait before it."""
    assert rig.node is not None
    (text,) = (e.message for e in rig.node.recorder if (e.reason, e.pod) == ("Pulled", f"default/{name}-n1"))
    times = r"(\S+) \((\S+) including waiting\)"
    found = re.fullmatch(rf'Successfully pulled image "\S+" in {times}\. Image size: \d+ bytes\.', text)
    assert found is not None, text
    return Duration.parse(found[1]), Duration.parse(found[2])


async def test_a_pulled_event_separates_pull_time_from_waiting_time(rig: Rig, registry: Registry):
    await rig.start()
    rig.write("first", {"containers": [container(image="slow1:1", imagePullPolicy="Always")]})
    await eventually(lambda: registry.begun == ["slow1:1"])
    rig.write("second", {"containers": [container(image="quick:1", imagePullPolicy="Always")]})
    await eventually(lambda: rig.reasons().count("Pulling") == 2)  # said before the wait, as a kubelet does
    await asyncio.sleep(0.05)
    registry.open.set()
    await eventually(lambda: rig.phase("second") == "Running")
    took, with_waiting = pulled(rig, "first")
    assert with_waiting >= took > 0
    took, with_waiting = pulled(rig, "second")
    assert with_waiting > took


@pytest.mark.parametrize(
    ("text", "waiting"),
    [
        ("x: not found", Waiting("ErrImagePull", "x: not found")),
        (
            "RegistryUnavailable: connection refused",
            Waiting(
                "RegistryUnavailable",
                "image pull failed for a:1 because the registry is unavailable: connection refused",
            ),
        ),
        (
            "SignatureValidationFailed",
            Waiting(
                "SignatureValidationFailed",
                "image pull failed for a:1 because the signature validation failed",
            ),
        ),
    ],
)
def test_errors_that_runtimes_give_a_name_become_the_reason(text: str, waiting: Waiting):
    assert failed_pull("a:1", text) == waiting


@pytest.mark.parametrize("at_once", [1, 3])
async def test_slow_pulls_stay_within_their_bound_and_delay_no_other(
    rig: Rig, hollow: HollowRuntime, registry: Registry, at_once: int
):
    if at_once > 1:
        rig.config.serialize_image_pulls = False
        rig.config.max_parallel_image_pulls = at_once
    rig.config.registry_pull_qps = 0
    hollow.images.add("busybox:1")
    await rig.start()
    slow = [f"slow{index}" for index in range(12)]
    for name in slow:
        rig.write(name, {"containers": [container(image=f"{name}:1")]})
    await eventually(lambda: len(hollow.service.records.sandboxes) == 12)
    await eventually(lambda: registry.now == at_once)
    rig.write("ready", {"containers": [container()]})
    await eventually(lambda: rig.phase("ready") == "Running")
    assert {rig.phase(name) for name in slow} == {"Pending"}
    assert waiting(rig, slow[0]).reason == "ContainerCreating"
    assert (registry.now, registry.most) == (at_once, at_once)
    registry.open.set()
    await eventually(lambda: all(rig.phase(name) == "Running" for name in slow))
    assert registry.most == at_once


async def test_an_image_that_arrived_while_waiting_is_not_pulled_again(
    rig: Rig, hollow: HollowRuntime, registry: Registry
):
    await rig.start()
    rig.write("p0", {"containers": [container(image="slow:1")]})
    await eventually(lambda: registry.now == 1)
    rig.write("p1", {"containers": [container(image="slow:1")]})
    rig.write("p2", {"containers": [container(image="slow:1")]})
    rig.write("always", {"containers": [container(image="slow:1", imagePullPolicy="Always")]})
    await eventually(lambda: len(hollow.service.records.sandboxes) == 4)
    registry.open.set()
    names = ("p0", "p1", "p2", "always")
    await eventually(lambda: all(rig.phase(name) == "Running" for name in names))
    assert len(registry.begun) == 2


async def test_an_endless_pull_is_abandoned_and_reported(
    rig: Rig, registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.node.images.pull.PULL_DEADLINE_SECONDS", 0.2)
    await rig.start()
    rig.write("stuck", {"containers": [container(image="slow:1")]})

    def given_up() -> bool:
        found = waiting(rig, "stuck")
        return found is not None and found.reason in ("ErrImagePull", "ImagePullBackOff")

    await eventually(given_up)
    said = [e.message for e in rig.node.recorder if e.reason == "Failed"]
    assert any("Failed to pull image" in text and "no answer before the deadline" in text for text in said)
    rig.write("next", {"containers": [container(image="quick:1")]})
    await eventually(lambda: rig.phase("next") == "Running")


async def test_an_image_whose_pull_the_end_of_the_agent_interrupts_is_not_preloaded(
    rig: Rig, registry: Registry
):
    """As after a crash: the runtime may finish the pull. That of a removed pod has no such consequence."""
    await rig.start()
    directory = rig.root / "image_manager" / "pulling"
    manifest = rig.write("removed", {"containers": [container(image="slow:1")]})
    await eventually(lambda: registry.now == 1)
    assert len(list(directory.iterdir())) == 1
    manifest.unlink()
    await eventually(lambda: not list(directory.iterdir()))
    rig.write("stopped", {"containers": [container(image="slow:2")]})
    await eventually(lambda: "slow:2" in " ".join(registry.begun))
    await rig.stop()
    (intent,) = directory.iterdir()
    assert json.loads(intent.read_bytes())["image"] == "slow:2"
    registry.open.set()
    await rig.start()
    await eventually(lambda: rig.phase("stopped") == "Running")
    assert not list(directory.iterdir())


async def test_a_pulled_image_is_kept_until_its_container_is_made(
    rig: Rig, hollow: HollowRuntime, registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    """Between pull and start the pod may wait for others; the lease covers that."""
    monkeypatch.setattr("engine.node.sync.services.STARTS_AT_ONCE", 1)
    rig.config.image_minimum_gc_age = Duration(0)
    rig.section = KubengineConfiguration(images=ImagesSection(leases=True))
    create, go_on = hollow.backend.create_container, asyncio.Event()
    creating = []

    async def slow_create(made: Any, image: cri.Image) -> None:
        creating.append(made)
        await go_on.wait()
        await create(made, image)

    await rig.start()
    rig.write("pulls", {"containers": [container(image="slow:1")]})
    await eventually(lambda: registry.now == 1)
    hollow.images.add("busybox:1")
    monkeypatch.setattr(hollow.backend, "create_container", slow_create)
    rig.write("blocks", {"containers": [container()]})
    await eventually(lambda: len(creating) == 1)
    registry.open.set()
    await eventually(lambda: hollow.images.resolve("slow:1") is not None)
    hollow.images.add("unused:1")
    manager: Any = rig.node.components["images"]
    await manager.detect()
    report = await manager.delete_unused()
    assert len(creating) == 1, "the slot was free after all"
    assert [verdict.names[0] for verdict in report.images if verdict.verdict == "removed"] == [
        "docker.io/library/unused:1"
    ]
    assert hollow.images.resolve("slow:1") is not None
    go_on.set()
    await eventually(lambda: rig.phase("pulls") == rig.phase("blocks") == "Running")


async def test_a_slow_post_start_hook_delays_no_other_pod(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.node.sync.services.STARTS_AT_ONCE", 1)
    hooked, go_on = asyncio.Event(), asyncio.Event()

    async def slow_hook(*args: Any, **kwargs: Any) -> None:
        hooked.set()
        await go_on.wait()

    monkeypatch.setattr("engine.node.sync.hooks.HookRunner.run", slow_hook)
    await rig.start()
    hook = {"postStart": {"exec": {"command": ["true"]}}}
    rig.write("hooked", {"containers": [container(lifecycle=hook), container("second")]})
    await eventually(hooked.is_set)
    rig.write("other", {"containers": [container()]})
    await eventually(lambda: rig.phase("other") == "Running")
    go_on.set()
    await eventually(lambda: len(hollow.service.records.containers) == 3)


def image_volume(reference: str, **fields: Any) -> dict[str, Any]:
    return {"name": "data", "image": {"reference": reference, **fields}}


MOUNT = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}


def image_volumes(rig: Rig) -> tuple[float, ...]:
    """Return the numbers of image volumes that were requested, mounted and failed."""
    assert rig.node is not None
    counters = (
        rig.node.registry.counter(f"kubelet_image_volume_{name}_total", "")
        for name in ("requested", "mounted_succeed", "mounted_errors")
    )
    return tuple(counter.values.get((), 0) for counter in counters)


async def test_an_image_volume_is_pulled_mounted_and_counts_as_used(rig: Rig, hollow: HollowRuntime):
    rig.config.image_minimum_gc_age = Duration(0)
    await rig.start()
    rig.write(
        "model",
        {
            "volumes": [image_volume("weights:1")],
            "containers": [container(**MOUNT), container("without")],
        },
    )
    await eventually(lambda: rig.phase("model") == "Running")
    containers = {c.config.metadata.name: c.config for c in hollow.service.records.containers.values()}
    mounts = {m.container_path: m for m in containers["c"].mounts}
    mounted, weights = mounts["/data"], hollow.images.resolve("weights:1")
    assert weights is not None
    assert mounted.readonly
    assert not mounted.host_path
    assert (mounted.image.image, mounted.image.user_specified_image) == (weights.id, "weights:1")
    assert "/data" not in {m.container_path for m in containers["without"].mounts}
    assert image_volumes(rig) == (1, 1, 0)
    hollow.images.add("unused:1")
    manager: Any = rig.node.components["images"]
    await manager.delete_unused()
    assert hollow.images.resolve("unused:1") is None
    assert hollow.images.resolve("weights:1") is not None


async def test_an_unavailable_image_volume_is_reported_and_delays_no_other_pod(
    rig: Rig, hollow: HollowRuntime
):
    await rig.start()
    volume = image_volume("absent:1", pullPolicy="Never")
    rig.write("model", {"volumes": [volume], "containers": [container(**MOUNT), container("without")]})

    def refused() -> bool:
        found = waiting(rig, "model")
        return found is not None and found.reason == "ErrImageNeverPull"

    await eventually(refused)
    assert 'image "absent:1" of volume "data"' in waiting(rig, "model").message
    await eventually(lambda: rig.pod("model").status.container_statuses[1].state.running)
    hollow.images.add("absent:1")
    await eventually(lambda: all(s.ready for s in rig.pod("model").status.container_statuses))


async def test_a_runtime_that_cannot_mount_images_is_named(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(made: Any, image: cri.Image) -> None:
        raise Refused('failed to stat ""')

    monkeypatch.setattr(hollow.backend, "create_container", refuse)
    await rig.start()
    rig.write("model", {"volumes": [image_volume("weights:1")], "containers": [container(**MOUNT)]})
    await eventually(lambda: "Failed" in rig.reasons())
    found = waiting(rig, "model")
    assert found.reason == "CreateContainerError"
    assert "too old" not in found.message  # nobody knows that of this runtime


async def test_an_image_that_the_runtime_cannot_mount_counts_as_failed(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(made: Any, image: cri.Image) -> None:
        raise Refused("ImageVolumeMountFailed: no such layer")

    monkeypatch.setattr(hollow.backend, "create_container", refuse)
    await rig.start()
    rig.write("model", {"volumes": [image_volume("weights:1")], "containers": [container(**MOUNT)]})
    await eventually(lambda: "Failed" in rig.reasons())
    requested, mounted, failed = image_volumes(rig)
    assert mounted == 0
    assert requested == failed >= 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"volumes": [image_volume("a", pullPolicy="Sometimes")]}, "image.pullPolicy: expected Always"),
    ],
    ids=["policy"],
)
async def test_an_image_volume_is_refused_with_its_field(rig: Rig, spec: dict[str, Any], said: str):
    await rig.start()
    rig.write("bad", {"containers": [container()], **spec})
    await eventually(lambda: "FailedManifest" in rig.reasons())
    [text] = [e.message for e in rig.node.recorder if e.reason == "FailedManifest"]
    assert re.search(said, text)


@pytest.mark.parametrize(
    ("given", "at_once"),
    [
        ({}, 1),
        ({"max_parallel_image_pulls": 1}, 1),
        ({"max_parallel_image_pulls": 5}, 5),
        ({"serialize_image_pulls": False}, PULLS_AT_ONCE),
        ({"serialize_image_pulls": False, "max_parallel_image_pulls": 2}, 2),
        ({"serialize_image_pulls": True, "max_parallel_image_pulls": 1}, 1),
    ],
    ids=str,
)
def test_how_many_images_are_pulled_at_once(given: dict[str, Any], at_once: int):
    assert pulls_at_once(KubeletConfiguration(**given)) == at_once


@pytest.mark.parametrize(
    "given", [{"max_parallel_image_pulls": 0}, {"serialize_image_pulls": True, "max_parallel_image_pulls": 2}]
)
def test_a_bound_that_makes_no_sense_is_refused(given: dict[str, Any]):
    with pytest.raises(InvalidInput, match="maxParallelImagePulls"):
        pulls_at_once(KubeletConfiguration(**given))


async def test_pulls_beyond_the_rate_fail_and_are_tried_again_after_a_pause(
    rig: Rig, hollow: HollowRuntime, registry: Registry
):
    rig.config.registry_pull_qps, rig.config.registry_burst = 1, 1
    rig.config.serialize_image_pulls = False
    await rig.start()
    for name in ("one", "two"):
        rig.write(name, {"containers": [container(image=f"{name}:1")]})
    await eventually(lambda: len(registry.begun) == 1 and "ErrImagePull" in reasons(rig, "one", "two"))
    (late,) = (name for name in ("one", "two") if f"{name}:1" not in registry.begun[0])
    assert waiting(rig, late).message == "pull QPS exceeded"


def reasons(rig: Rig, *names: str) -> list[str]:
    return [state.reason for name in names if (state := waiting(rig, name)) is not None]


async def test_images_come_from_their_own_endpoint(rig: Rig, hollow: HollowRuntime, tmp_path: Path):
    """`imageServiceEndpoint` is another socket than the runtime's."""
    socket = tmp_path / "images.sock"
    services = {"RuntimeService": hollow.service, "ImageService": ImageService(hollow.images)}
    server = CriServer(socket, services)
    await server.start()
    rig.config.image_service_endpoint = f"unix://{socket}"
    client = RuntimeClient(str(hollow.socket), image_endpoint=f"unix://{socket}")
    try:
        await rig.start()
        rig.write("one", {"containers": [container(image="one:1")]})
        await eventually(lambda: rig.phase("one") == "Running")
        assert await client.list_images()
        await server.stop()
        with pytest.raises(Unavailable, match=f"CRI ListImages on unix://{socket}"):
            await client.list_images()
        assert await client.version()
        rig.write("two", {"containers": [container(image="two:1")]})
        await eventually(lambda: waiting(rig, "two") is not None and waiting(rig, "two").reason != CREATING)
    finally:
        await client.close()
        await server.stop()


CREATING = "ContainerCreating"


@pytest.mark.parametrize(
    ("what", "runtime", "version", "why"),
    [
        (
            MOUNTS,
            "containerd",
            "1.6.20~ds1",
            "containerd 2.1 or later is needed for image volumes, and this is",
        ),
        (MOUNTS, "containerd", "v2.1.0-rc.1", ""),
        (
            SUB_PATHS,
            "containerd",
            "2.1.9",
            "containerd 2.2 or later is needed for a subPath in an image volume",
        ),
        (SUB_PATHS, "containerd", "v2.2.0", ""),
        (SUB_PATHS, "containerd", "v10.0.0", ""),
        (SUB_PATHS, "containerd", "devel", ""),
        (SUB_PATHS, "cri-o", "1.20.0", ""),
    ],
)
def test_containerds_too_old_for_image_volumes_are_known(what: str, runtime: str, version: str, why: str):
    said = too_old(what, runtime, version)
    assert said.startswith(why)
    assert bool(said) == bool(why)
