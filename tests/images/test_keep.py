"""Images that an operator wants kept."""

from __future__ import annotations

import pytest

from engine.api.decisions import Decisions
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ImagesSection
from engine.images.keep_patterns import KeepPatterns
from tests.images.test_manager import GIB, Runtime, disk, make  # noqa: F401


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("busybox", "docker.io/library/busybox:latest", True),
        ("busybox", "docker.io/library/busybox:1.36", False),
        ("busybox:*", "docker.io/library/busybox:1.36", True),
        ("docker.io/library/busybox:*", "docker.io/library/busybox:1.36", True),
        ("me/*", "docker.io/me/app:1", True),
        ("registry.example.com/*", "registry.example.com/team/app@sha256:00", True),
        ("registry.example.com/*", "registry.example.org/team/app:1", False),
        ("r.io:5000/app:[12]", "r.io:5000/app:2", True),
        ("r.io:5000/app:[12]", "r.io:5000/app:3", False),
        ("r.io:5000/app", "r.io:5000/app:latest", True),
        ("R.io/app:1", "r.io/app:1", False),
        ("app.1", "docker.io/library/appX1:latest", False),
        ("sha256:00", "sha256:00", True),
    ],
)
def test_which_names_a_pattern_matches(pattern: str, name: str, matches: bool):
    assert KeepPatterns(["other:1", pattern]).matching(["example.com/first:1", name]) == (
        pattern if matches else ""
    )


def test_an_empty_pattern_is_refused():
    with pytest.raises(InvalidInput, match=r"images\.keep\[1\]"):
        KeepPatterns(["busybox", " "])


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("run", ["garbage_collect", "delete_unused"])
async def test_neither_age_nor_space_nor_pressure_takes_a_kept_image(run: str):
    runtime = Runtime()
    world = make(
        runtime,
        ImagesSection(keep=["example.com/00:*", "example.com/03:1"]),
        image_gc_high_threshold_percent=50,
        image_gc_low_threshold_percent=0,
    )
    world.manager._decisions = decisions = Decisions(world.wall)
    for _ in range(2):
        await getattr(world.manager, run)()
    assert sorted(runtime.images) == ["sha256:00", "sha256:03"]
    kept = [(d.inputs["image"], d.reason) for d in decisions.after(0) if d.outcome == "kept"]
    assert kept == [
        ("sha256:00", "kept by the pattern 'example.com/00:*' in images.keep"),
        ("sha256:03", "kept by the pattern 'example.com/03:1' in images.keep"),
    ]
    report = world.manager.last_report
    assert report is not None
    assert {v.key: v.verdict for v in report.images} == {"sha256:00": "kept", "sha256:03": "kept"}


async def test_while_space_suffices_keeping_is_no_decision(disk):  # noqa: F811
    disk.available = 9 * GIB
    world = make(Runtime(), ImagesSection(keep=["example.com/*"]))
    world.manager._decisions = decisions = Decisions(world.wall)
    await world.manager.garbage_collect()
    assert decisions.after(0) == []
