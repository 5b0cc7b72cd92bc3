"""Image garbage collections are judged by what the kubelet can have known of the images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.images.records import SeenImage
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.images import COUNTER, NOTHING, PERIOD, ImageComparer
from engine.shadow.kinds.observation import FileSystem, Observation, SeenImages
from tests.shadow.observations import observed

GIB = 1 << 30
COLLECTED = f'{COUNTER}{{reason="space"}}'
QUIET = {"imageMinimumGCAge": "60s", "evictionHard": {}}
AGED = f'{COUNTER}{{reason="age"}}'


def image(name: str, gib: int = 5, *, pinned: bool = False) -> SeenImage:
    return SeenImage(f"sha256:{name}", gib * GIB, pinned, "", (f"example.com/{name}:1",))


class Node:
    """Represent a node of 100 GiB whose kubelet collects images above 85 %, down to 80 %, by default."""

    def __init__(self, **fields: Any) -> None:
        self.config = convert({**QUIET, **fields}, KubeletConfiguration, "test")
        self.comparer = ImageComparer()
        self.now = 10_000.0
        self.removed = 0
        self.aged = 0

    def sees(
        self,
        *images: SeenImage,
        used: set[str] = frozenset(),
        free: int = 50,
        after: float = 30,  # type: ignore[assignment]
    ) -> list[Finding]:
        self.now += after
        keys = frozenset(f"sha256:{name}" for name in used)
        seen = SeenImages(images, keys, FileSystem(100 * GIB, free * GIB))
        return list(self.comparer.compare(self._observed(seen)))

    def _observed(self, seen: SeenImages | None) -> Observation:
        found = observed([], config=self.config)
        series = {COLLECTED: float(self.removed), AGED: float(self.aged)}
        return replace(found, at=self.now, now=self.now, images=seen, series=series)

    def again(self) -> list[Finding]:
        """Return the findings of an observation that does not read the images."""
        return list(self.comparer.compare(self._observed(None)))


def sides(found: list[Finding]) -> tuple[str, str]:
    (one,) = found
    assert isinstance(one, Comparison)
    return one.ours, one.kubelets


def reason(found: list[Finding]) -> str:
    (one,) = found
    return one.why if isinstance(one, NotJudged) else one.our_reason


def with_use_in_order(node: Node) -> tuple[SeenImage, SeenImage, SeenImage]:
    """Three images, of which the kubelet has found a, then b, then c in use last."""
    images = image("a"), image("b"), image("c")
    for name in "abc":
        for _ in range(12):
            node.sees(*images, used={name}, after=60)
    node.sees(*images, after=2 * PERIOD)
    return images


def test_below_the_threshold_nothing_is_collected() -> None:
    node = Node()
    assert sides(node.sees(image("a"))) == (NOTHING, NOTHING)
    assert "50 % full, the thresholds are 85 and 80 %" in reason(node.again())


def test_the_image_that_was_used_longest_ago_goes_first() -> None:
    node = Node()
    a, b, c = with_use_in_order(node)
    node.sees(a, b, c, free=15)
    node.removed = 1
    assert sides(node.sees(b, c, free=20)) == ("example.com/a:1",) * 2


def test_another_order_is_a_difference() -> None:
    node = Node()
    a, b, c = with_use_in_order(node)
    node.sees(a, b, c, free=15)
    node.removed = 5
    found = node.sees(a, b, free=20)
    assert reason(found) == "not all removed images were seen, or others were removed too"
    node.removed = 6
    found = node.sees(a, free=25)
    assert sides(found)[1] == "example.com/b:1"
    assert sides(found)[0] != "example.com/b:1"
    assert reason(found).startswith("example.com/a:1 was used before example.com/b:1, and goes before it")


def test_images_that_cannot_be_told_apart_may_go_in_any_order() -> None:
    for left in (0, 1):
        node = Node()
        images = image("a"), image("b")
        node.sees(*images)
        node.sees(*images, after=2 * PERIOD, free=15)
        node.removed = 1
        (theirs, ours) = sides(node.sees(images[left], free=20))
        assert ours == theirs == images[1 - left].names[0]


@pytest.mark.parametrize(
    ("used", "fields", "pinned", "free", "why"),
    [
        ({"a"}, {}, False, 15, "is in use by a container"),
        (set(), {}, True, 15, "is pinned in the runtime"),
        (set(), {}, False, 50, "the image file system is below the high threshold"),
        (set(), {"imageGCHighThresholdPercent": 100}, False, 5, "image garbage collection is off"),
    ],
)
def test_what_must_stay(used: set[str], fields: dict[str, Any], pinned: bool, free: int, why: str) -> None:
    node = Node(**fields)
    images = image("a", pinned=pinned), image("b")
    node.sees(*images, used=used, free=free)
    node.sees(*images, used=used, free=free, after=2 * PERIOD)
    node.removed = 1
    found = node.sees(images[1], used=used, free=free)
    assert sides(found)[0] != sides(found)[1] == "example.com/a:1"
    assert why in reason(found)


def test_an_image_younger_than_the_minimum_age_stays() -> None:
    node = Node(imageMinimumGCAge="10m")
    node.sees(image("old"))
    node.sees(image("old"), after=2 * PERIOD)
    node.sees(image("old"), image("new"), free=15)
    node.removed = 1
    assert "example.com/new:1 is not there for 600 s" in reason(node.sees(image("old"), free=20))


def test_too_many_and_too_few_are_differences() -> None:
    node = Node()
    images = [image(name) for name in "abc"]
    node.sees(*images)
    node.sees(*images, after=2 * PERIOD, free=15)
    node.removed = 3
    assert "5.0 GiB had to go, and fewer images have it" in reason(node.sees(free=30))
    node = Node()
    images = [image("a", 2), *images[1:]]
    node.sees(*images)
    node.sees(*images, after=2 * PERIOD, free=15)
    node.removed = 1
    assert "had to go, and example.com/b:1 was left" in reason(node.sees(*images[1:], free=17))


def test_under_disk_pressure_everything_unused_goes() -> None:
    node = Node(evictionHard={"imagefs.available": "10%"})
    images = [image(name) for name in "abc"]
    node.sees(*images)
    node.sees(*images, after=2 * PERIOD, free=9)
    node.removed = 3
    assert sides(node.sees(free=9))[0] == "example.com/a:1, example.com/b:1, example.com/c:1"
    node = Node(evictionHard={"imagefs.available": "10%"})
    node.sees(*images)
    node.sees(*images, after=2 * PERIOD, free=9)
    node.removed = 1
    assert "goes when the disk is low" in reason(node.sees(*images[1:], free=9))


def test_a_removal_for_age_needs_a_long_disuse() -> None:
    node = Node(imageMaximumGCAge="1h")
    a, b = image("a"), image("b")
    node.sees(a, b)
    for _ in range(80):
        node.sees(a, b, used={"b"}, after=60)
    node.sees(a, b)
    node.aged = 1
    assert sides(node.sees(b)) == ("example.com/a:1",) * 2
    node.aged = 2
    assert "example.com/b:1 was used less than 3600 s ago" in reason(node.sees())


def test_a_kubelet_that_removes_nothing_although_the_disk_is_full_differs() -> None:
    node = Node()
    node.sees(image("a"), free=10)
    found = node.sees(image("a"), free=10, after=2 * PERIOD)
    assert sides(found) == ("collects images", NOTHING)
    (one,) = found
    assert isinstance(one, Comparison)
    assert one.settle > PERIOD
    assert sides(node.sees(image("a"), used={"a"}, free=10)) == (NOTHING, NOTHING)


def test_what_another_client_removed_is_not_the_kubelets() -> None:
    node = Node()
    node.sees(image("a"))
    assert reason(node.sees()) == "another client of the runtime removed images"


def test_a_file_system_that_is_not_known_reassures_nobody() -> None:
    node = Node()
    seen = SeenImages([image("a")], frozenset())
    found = list(node.comparer.compare(replace(observed([]), images=seen)))
    assert found == [NotJudged("images", "node", "the image file system is not known")]


def test_another_kubelet_has_forgotten_what_it_knew() -> None:
    node = Node()
    a, b, c = with_use_in_order(node)
    seen = SeenImages((a, b, c), frozenset(), FileSystem(100 * GIB, 15 * GIB))
    restarted = {"process_start_time_seconds": 7.0}
    list(
        node.comparer.compare(
            replace(observed([], at=node.now, config=node.config), images=seen, series=restarted)
        )
    )
    later = replace(observed([], at=node.now + 2 * PERIOD, config=node.config), images=seen, series=restarted)
    list(node.comparer.compare(later))
    gone = replace(seen, images=(a, b), filesystem=FileSystem(100 * GIB, 16 * GIB))
    counted = replace(later, now=later.now + 30, images=gone, series={**restarted, COLLECTED: 1.0})
    # Of the three, it may remove any: it knows of no use.
    assert sides(list(node.comparer.compare(counted))) == ("example.com/c:1",) * 2
