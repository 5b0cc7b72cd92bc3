"""Manifests that come many at once: what has been read is followed while the others are read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.api.pod import Pod
from engine.host.records.store import RecordStore
from engine.node.pod.records import AcceptedSpecs
from engine.node.sources import manifests as sources
from engine.node.sources.manifests import ManifestDirectory
from engine.node.sources.static_pods import StaticUids
from tests.waiting import eventually

MANIFEST = "apiVersion: v1\nkind: Pod\nmetadata: {{name: {0}}}\nspec: {{containers: [{{name: c, image: i}}]}}"


class World:
    """Record the names of the pods of each list that a manifest directory delivers (`received`), and remove
    the manifest `removed_next` when a list arrives."""

    def __init__(self, directory: Path) -> None:
        self.manifests = directory / "manifests"
        self.staging = directory / "staging"
        self.manifests.mkdir()
        self.staging.mkdir()
        self.received: list[list[str]] = []
        self.faults: list[str] = []
        self.removed_next = ""

    def write(self, *names: str) -> None:
        for name in names:
            (self.staging / f"{name}.yaml").write_text(MANIFEST.format(name))
        for name in names:
            (self.staging / f"{name}.yaml").replace(self.manifests / f"{name}.yaml")

    def receive(self, pods: list[Pod]) -> None:
        self.received.append([pod.metadata.name.removesuffix("-n1") for pod in pods])
        (self.manifests / f"{self.removed_next}.yaml").unlink(missing_ok=True)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        source = ManifestDirectory(
            self.manifests,
            node_name="n1",
            period=3600,
            clock=time.time,
            uids=StaticUids(list, AcceptedSpecs(RecordStore(self.staging / "records"))),
            on_change=self.receive,
            on_fault=lambda error: self.faults.append(str(error)),
        )
        await source.start()
        await source.scanned.wait()
        try:
            yield
        finally:
            await source.stop()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(sources, "READ_AT_ONCE", 2)
    monkeypatch.setattr(sources, "SETTLE_SECONDS", 0.2)
    return World(tmp_path)


async def test_the_first_scan_is_reported_at_once(world: World) -> None:
    world.write(*"abcde")
    async with world.followed():
        assert world.received == [list("abcde")]


async def test_later_scans_are_reported_in_growing_batches(world: World) -> None:
    async with world.followed():
        world.write(*"abcdefghij")
        await eventually(lambda: world.received[-1] == list("abcdefghij"))
    assert world.received == [[], list("ab"), list("abcd"), list("abcdefgh"), list("abcdefghij")]


async def test_a_group_that_vanishes_during_reading_is_no_fault(world: World) -> None:
    async with world.followed():
        world.removed_next = "e"
        world.write(*"abcde")
        await eventually(lambda: list("abcd") in world.received)
        world.write("f")
        await eventually(lambda: world.received[-1] == list("abcdf"))
    assert not world.faults
