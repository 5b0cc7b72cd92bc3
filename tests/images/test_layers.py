"""What a removal truly frees: the order by hand-made images, what runtimes tell, a run over shared layers."""

from __future__ import annotations

import json

import pytest

from engine.api.errors import Unavailable
from engine.api.kubengine_config import ImagesSection
from engine.images.layers import Layer, removal_order, reported_layers
from tests.images.test_manager import GIB, Runtime, disk, make  # noqa: F401

BASE, OTHER = Layer("base", 100), Layer("other", 30)


def own(name: str, size: int) -> Layer:
    return Layer(name, size)


def test_among_equally_old_images_the_one_that_frees_most_is_removed_first():
    """The base image frees nothing while two others stand on it; the last of them takes it along."""
    images = [(BASE,), (BASE, own("a", 10)), (BASE, own("b", 40)), (OTHER,)]
    assert removal_order(images, [0.0] * 4, range(4)) == [(2, 40), (3, 30), (1, 10), (0, 100)]


def test_age_comes_first():
    images = [(BASE, own("a", 1)), (own("b", 1000),)]
    assert removal_order(images, [1.0, 2.0], range(2)) == [(0, 101), (1, 1000)]


def test_a_layer_of_an_image_that_stays_frees_nothing():
    images = [(BASE, own("a", 10)), (BASE, own("b", 20)), (own("c", 15),)]
    assert removal_order(images, [0.0] * 3, [0, 2]) == [(2, 15), (0, 10)]


def test_a_layer_that_an_image_names_twice_is_one():
    assert removal_order([(BASE, BASE)], [0.0], [0]) == [(0, 100)]


def test_the_order_is_that_of_ranking_again_after_each_removal():
    """Against the plain rule, over overlapping layers."""
    layers = [Layer(f"l{n}", (n * 37) % 101) for n in range(12)]
    images = [tuple(layers[(row * step) % 12] for step in (1, 2, 5)) for row in range(30)]
    last_used = [float(row % 3) for row in range(30)]
    eligible = [row for row in range(30) if row % 7]
    left, expected = list(range(30)), []
    candidates = set(eligible)
    while candidates:

        def frees(row: int) -> int:
            others = {layer for other in left if other != row for layer in images[other]}
            return sum(layer.size for layer in set(images[row]) - others)

        row = min(candidates, key=lambda row: (last_used[row], -frees(row), row))
        expected.append((row, frees(row)))
        candidates.remove(row)
        left.remove(row)
    assert removal_order(images, last_used, eligible) == expected


@pytest.mark.parametrize(
    ("info", "layers"),
    [
        ({"info": json.dumps({"layerSizes": {"a": 5, "b": 7}})}, (Layer("a", 5), Layer("b", 7))),
        (
            {"info": json.dumps({"imageSpec": {"rootfs": {"diff_ids": ["x", "y"]}}})},
            (Layer("x", 45), Layer("y", 45)),
        ),
        ({}, (Layer("id", 90),)),
        ({"info": "no JSON"}, (Layer("id", 90),)),
        ({"info": "[1]"}, (Layer("id", 90),)),
        ({"info": '{"layerSizes": [1]}'}, (Layer("id", 90),)),
        ({"info": '{"imageSpec": {"rootfs": null}}'}, (Layer("id", 90),)),
    ],
)
def test_which_layers_runtimes_report(info: dict[str, str], layers: tuple[Layer, ...]):
    assert reported_layers(info, "id", 90) == layers


class Layered(Runtime):
    """Report layers: images 0 to 2 share half a GiB and have 0, 100 and 200 MiB of their own, 3 has half a
    GiB, and the layers of 4 are unknown. Each is listed with a GiB."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def image_info(self, image: str, _handler: str = "") -> dict[str, str]:
        self.asked.append(image)
        number = int(image[-2:], 16)
        if number == 4:
            raise Unavailable("no answer")
        layers = {"base": GIB // 2, f"own{number}": number * 100 << 20} if number < 3 else {"all": GIB // 2}
        return {"info": json.dumps({"layerSizes": layers})}


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_run_removes_what_frees_most_and_counts_it(dry_run: bool):
    """Nine of ten GiB are used and 1.6 are wanted: two images of a GiB each would do by their sizes."""
    runtime = Layered()
    world = make(
        runtime,
        ImagesSection(order="layers"),
        image_gc_high_threshold_percent=80,
        image_gc_low_threshold_percent=74,
    )
    await world.manager.detect()
    world.wall.now += 1
    world.elapsed.now += 1
    report = await world.manager.garbage_collect(dry_run=dry_run)
    assert report.attempted == ["sha256:04", "sha256:03", "sha256:02"]
    assert report.freed == GIB + GIB // 2 + (200 << 20)
    assert runtime.removed == ([] if dry_run else report.attempted)
    freed = [one.inputs["freed"] for one in world.decisions.after(0)]
    assert freed == ([] if dry_run else [GIB, GIB // 2, 200 << 20])
    assert {one.inputs["order"] for one in world.decisions.after(0)} == (set() if dry_run else {"layers"})
    assert world.registry.metrics["kubengine_image_gc_freed_bytes_total"].values == {
        (): 0 if dry_run else report.freed
    }
    assert sorted(runtime.asked) == sorted(runtime.images | dict.fromkeys(runtime.removed))


@pytest.mark.usefixtures("disk")
async def test_an_image_is_asked_once_and_no_other_order_asks():
    runtime = Layered()
    runtime.images.pop("sha256:04")
    for order, asked in (("lru", 0), ("layers", 4)):
        world = make(runtime, ImagesSection(order=order))
        for _ in range(3):
            await world.manager.delete_unused(dry_run=True)
        assert len(runtime.asked) == asked
