"""Image GC: order and cut, and detection, beside the kubelet's own times on the same amounts.

`pytest bench/bench_images.py`. The kubelet's figures (v1.32, Go, same kind of machine, 2 shared cores at
2.5 GHz) are orientation, printed in the group names: freeSpace over half of N images with its logging
on (as configured by default) and off; detectImages with N images and 2N containers.
"""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import numpy as np
import pytest

from engine._fast.ranking import _image_order_c, _image_order_py
from engine.api.config import KubeletConfiguration
from engine.host.node_context import NodeContext
from engine.images import records as records_module
from engine.images import selection
from engine.images.manager import ImageManager
from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.tables import ImageTable
from engine.wire import cri_v1_pb2 as cri

NOW = 1_700_000_000.0
FREE_SPACE = {100: "187 / 23 µs", 1_000: "1.88 / 0.224 ms", 10_000: "18.8 / 3.15 ms"}
DETECT = {100: "145 µs", 1_000: "1.59 ms", 10_000: "22.7 ms"}
KERNELS = {"kernel": _image_order_c, "twin": _image_order_py}


def table(count: int) -> ImageTable:
    random = np.random.default_rng(1)
    images = ImageTable(count)
    for number in range(count):
        images.add(f"sha256:{number:064x}", size=int(random.integers(1 << 20, 1 << 30)), detected=NOW - 9e5)
    columns = images.columns
    columns.first_detected[:count] = NOW - random.integers(1000, 900_000, count)
    columns.last_used[:count] = np.where(
        random.random(count) < 0.3, 0.0, NOW - random.integers(1, 900_000, count)
    )
    return images


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("count", FREE_SPACE)
def test_order_and_cut_half(benchmark, monkeypatch, count, which):
    """From the columns to the rows to remove, eligibility included."""
    benchmark.group = f"order and cut, half of {count} images (kubelet freeSpace: {FREE_SPACE[count]})"
    monkeypatch.setattr(selection, "order_and_cut", KERNELS[which].order_and_cut)
    columns = table(count).columns
    policy = ImageGCPolicy()
    target = int(columns.size.sum()) // 2

    def run() -> int:
        return len(selection.order(columns, selection.spare(columns, policy, NOW), policy, NOW, target))

    assert count * 0.4 < benchmark(run) < count * 0.6


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("count", DETECT)
def test_detect(benchmark, monkeypatch, count, which):
    """From the runtime's lists (ids as strings) to up-to-date records; five images and ten containers
    change between two looks."""
    benchmark.group = f"detection, {count} images, {2 * count} containers (kubelet: {DETECT[count]})"
    monkeypatch.setattr(records_module, "mark", KERNELS[which].mark)
    monkeypatch.setattr(records_module, "match", KERNELS[which].match)
    records = ImageRecords()
    seen = [SeenImage(f"sha256:{n:064x}", 1 << 20) for n in range(count + 5)]
    worlds = [
        (seen[:count], [seen[(7 * n) % count].id for n in range(2 * count)]),
        (seen[5:], [seen[(7 * n) % count + 5].id for n in range(2 * count)]),
    ]
    for images, used in worlds:
        records.detect(images, used, NOW)
    turn = [0]

    def run() -> None:
        turn[0] ^= 1
        images, used = worlds[turn[0]]
        records.detect(images, used, NOW + turn[0])

    benchmark(run)
    assert len(records) == count


def image(number: int) -> cri.Image:
    name = f"registry.example.com/team/service-{number}"
    return cri.Image(
        id=f"sha256:{number:064x}",
        repo_tags=[f"{name}:v1"],
        repo_digests=[f"{name}@sha256:{number:064x}"],
        size=1 << 20,
        spec=cri.ImageSpec(),
    )


def container(number: int, images: int) -> cri.Container:
    labels = {
        "io.kubernetes.container.name": "app",
        "io.kubernetes.pod.name": f"service-{number}",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": f"{number:032x}",
    }
    annotations = {
        "io.kubernetes.container.hash": f"{number:08x}",
        "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }
    return cri.Container(
        id=f"{number:064x}",
        pod_sandbox_id=f"{number:064x}",
        metadata=cri.ContainerMetadata(name="app"),
        image=cri.ImageSpec(image=f"sha256:{(7 * number) % images:064x}"),
        image_ref=f"sha256:{(7 * number) % images:064x}",
        state=cri.CONTAINER_RUNNING,
        created_at=number,
        labels=labels,
        annotations=annotations,
    )


class Runtime:
    """Stand in for a runtime with `count` images and `containers` containers that answers at once."""

    endpoint = "unix:///bench"

    def __init__(self, count: int, containers: int) -> None:
        images = [image(number) for number in range(count + 5)]
        self.worlds = [
            (
                cri.ListImagesResponse(images=images[shift : count + shift]).SerializeToString(),
                cri.ListContainersResponse(
                    containers=[container(number, count) for number in range(shift, containers + shift)]
                ).SerializeToString(),
            )
            for shift in (0, 5)
        ]
        self.turn = 0

    async def read_images(self, read):
        return read(self.worlds[self.turn][0])

    async def read_containers(self, read):
        return read(self.worlds[self.turn][1])

    async def image_fs_info(self):
        usage = cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint="/images"))
        return cri.ImageFsInfoResponse(image_filesystems=[usage])

    async def remove_image(self, _id: str, _handler: str = "") -> None:
        pass


def manager(runtime: Runtime) -> ImageManager:
    return ImageManager(
        NodeContext.create(KubeletConfiguration(), clock=lambda: NOW),
        runtime=runtime,
    )


@pytest.mark.parametrize("count", DETECT)
def test_detect_agent(benchmark, count):
    """The same as the manager does it, from the runtime's bytes."""
    benchmark.group = f"detection, {count} images, {2 * count} containers (kubelet: {DETECT[count]})"
    runtime = Runtime(count, 2 * count)
    images = manager(runtime)
    loop = asyncio.new_event_loop()

    def run() -> None:
        runtime.turn ^= 1
        loop.run_until_complete(images.detect())

    benchmark(run)
    loop.close()
    assert len(images.records) == count


@pytest.mark.parametrize("count", FREE_SPACE)
def test_gc_run_agent(benchmark, monkeypatch, count):
    """A whole run of the manager without its detection: half of the images go, in no time."""
    benchmark.group = f"order and cut, half of {count} images (kubelet freeSpace: {FREE_SPACE[count]})"
    full = SimpleNamespace(f_blocks=1 << 20, f_bavail=0, f_frsize=1, f_bsize=1, f_files=0, f_favail=0)
    full.f_blocks = count * 5 // 2 << 20
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    loop = asyncio.new_event_loop()

    async def detected(_: float) -> None:
        pass

    def full_manager() -> tuple[tuple[ImageManager], dict[str, object]]:
        images = manager(Runtime(count, 0))
        loop.run_until_complete(images.detect())
        images._now = lambda: NOW + 1e6
        images._detect = detected
        return (images,), {}

    def run(images: ImageManager) -> int:
        report = loop.run_until_complete(images.garbage_collect())
        return len(report.removed)

    assert benchmark.pedantic(run, setup=full_manager, rounds=5) == count // 2
    loop.close()
