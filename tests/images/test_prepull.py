"""Images that the node keeps ready: pulled where missing, never collected; silence while all are there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from engine.api.decisions import Decisions
from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import ImagesSection, KubengineConfiguration
from engine.host.tasks import Tasks
from engine.images.prepull import Prepull
from engine.metrics import Registry
from engine.runtime.embedded import EmbeddedRuntime
from engine.testing.images import BUSYBOX_TAG, busybox_layer, write_image
from tests.images.test_manager import Runtime, disk, make  # noqa: F401
from tests.node_rig import Rig
from tests.waiting import eventually

PULLS = "kubengine_image_prepulls_total"
MISSING = "kubengine_image_prepull_missing"


class Registries:
    """Serve pulls, of which those of an image fail as often as `failures` says, and count concurrent
    pulls."""

    def __init__(self, failures: dict[str, int] | None = None) -> None:
        self.failures = failures or {}
        self.pulled: list[str] = []
        self.at_once = self.most = 0

    async def pull(self, name: str) -> None:
        self.pulled.append(name)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        self.at_once -= 1
        if self.failures.get(name, 0):
            self.failures[name] -= 1
            raise Refused("no such image", subject=name)


def keeping(names: list[str], source: Registries, **given) -> tuple[Prepull, Decisions, Registry]:
    decisions, registry = Decisions(time.time), Registry()
    prepull = Prepull(
        names, source.pull, at_once=given.pop("at_once", 1), decisions=decisions, registry=registry,
        tasks=Tasks(), retries=RetryDelays(0.001, 300.0),
    )  # fmt: skip
    return prepull, decisions, registry


async def test_missing_images_are_pulled_and_present_ones_are_not():
    source = Registries()
    prepull, decisions, registry = keeping(["busybox", "r.io/app@sha256:00", "me/tool:1"], source)
    prepull.update(["docker.io/library/busybox:latest", "other"])
    prepull.update(["busybox:latest"])
    await eventually(lambda: registry.metrics[MISSING].values == {(): 0})
    assert sorted(source.pulled) == ["me/tool:1", "r.io/app@sha256:00"]
    assert [(one.kind, one.outcome) for one in decisions.after(0)] == [("image-pull", "pulled")] * 2
    await eventually(lambda: not prepull._under_way)
    prepull.update(["busybox", "r.io/app@sha256:00", "docker.io/me/tool:1"])
    assert not prepull._under_way
    await prepull.stop()


async def test_at_most_the_configured_number_is_pulled_at_once():
    source = Registries()
    prepull, _, registry = keeping([f"app:{n}" for n in range(9)], source, at_once=2)
    prepull.update([])
    await eventually(lambda: registry.metrics[MISSING].values == {(): 0})
    assert source.most == 2
    await prepull.stop()


async def test_a_failed_pull_is_retried_and_reported_once(caplog: pytest.LogCaptureFixture):
    source = Registries({"app:1": 3})
    prepull, decisions, registry = keeping(["app:1", "app:2"], source)
    prepull.update([])
    await eventually(lambda: registry.metrics[MISSING].values == {(): 0})
    assert registry.metrics[PULLS].values == {("failed",): 3, ("pulled",): 2}
    assert [one.outcome for one in decisions.after(0)] == ["failed", "pulled", "pulled"]
    assert caplog.text.count("cannot keep image app:1 ready") == 1
    await prepull.stop()


async def test_an_end_waits_for_no_pull():
    source = Registries({"app:1": 10**9})
    prepull, _, _ = keeping(["app:1"], source)
    prepull.update([])
    await eventually(lambda: len(source.pulled) > 2)
    await prepull.stop()
    pulls = len(source.pulled)
    await asyncio.sleep(0.02)
    assert len(source.pulled) == pulls


@pytest.mark.parametrize(
    ("names", "at_once", "message"),
    [(["a", " "], 1, r"images\.prepull\[1\]"), (["a"], 0, r"images\.prepullAtOnce")],
)
def test_impossible_values_are_refused(names: list[str], at_once: int, message: str):
    with pytest.raises(InvalidInput, match=message):
        keeping(names, Registries(), at_once=at_once)


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("run", ["garbage_collect", "delete_unused"])
async def test_neither_space_nor_pressure_takes_a_leased_image(run: str):
    runtime = Runtime()
    section = ImagesSection(prepull=["example.com/02:1"])
    world = make(
        runtime,
        section,
        pull=Registries().pull,
        image_gc_high_threshold_percent=50,
        image_gc_low_threshold_percent=0,
    )
    for _ in range(2):
        await getattr(world.manager, run)()
    assert list(runtime.images) == ["sha256:02"]
    (kept,) = [one.reason for one in world.decisions.after(0) if one.outcome == "kept"]
    assert kept == "leased: 'example.com/02:1' is in images.prepull"


@pytest.mark.root
async def test_a_node_pulls_what_it_is_to_keep_ready(tmp_path: Path):
    """A real agent on the embedded runtime, with a directory of archives as its registry."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    runtime = EmbeddedRuntime(
        socket=tmp_path / "cri.sock", root=tmp_path / "images", state=tmp_path / "state", archives=shelf
    )
    await runtime.start()
    rig = Rig(tmp_path, runtime.socket)
    rig.section = KubengineConfiguration(images=ImagesSection(prepull=[BUSYBOX_TAG]))
    write_image(shelf / "busybox.tar", [BUSYBOX_TAG], layers=[busybox_layer(("sh",))])
    try:
        node = await rig.start()
        await eventually(lambda: node.registry.metrics[PULLS].values == {("pulled",): 1})
        pulled = [one for one in node.decisions.after(0) if one.kind == "image-pull"]
        assert [(one.outcome, one.inputs["name"]) for one in pulled] == [("pulled", BUSYBOX_TAG)]
        images = await cast(Any, node.components["images"]).describe()
        (kept,) = [one for one in images["images"] if one["protected"].startswith("leased")]
        assert kept["size"] > 0
    finally:
        await rig.close()
        await runtime.purge()
