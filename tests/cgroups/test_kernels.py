"""Run the scenes on this machine's hierarchies, and on cgroup v2 in one boot of User-Mode Linux."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cgroup_scenes
import pytest

from engine.cgroups.formulas.conversion import shares_to_weight
from engine.testing.uml import run_in_uml

Scene = Callable[..., Any]
GI = 1 << 30


def on_this_machine(scene: str, root: str, scenes: ModuleType = cgroup_scenes, **arguments: Any) -> Any:
    return getattr(scenes, scene)(root, **arguments)


def in_uml(scene: str, root: str, scenes: ModuleType = cgroup_scenes, **arguments: Any) -> Any:
    return run_in_uml(
        f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import {scenes.__name__} as scenes
        report(scenes.{scene}({root!r}, **{arguments!r}))
        """
    )


ON_V2: dict[str, dict[str, Any]] = {
    "worked_example": {},
    "cpu_split": {},
    "memory_hog": {},
    "reservation_follows": {},
    "outside_changes": {},
    "read_back": {},
    "reserved_groups": {},
    "root_restored": {},
    "live_resize": {},
    "shrunk_while_away": {},
    "many_pods": {"count": 1000},
    "leftovers": {},
    "memory_qos": {},
}
"""The scenes that are played in the one boot, with their arguments."""


@cache
def seen_on_v2() -> dict[str, Any]:
    """Return the result of each scene on cgroup v2, or the traceback if it failed."""
    seen: dict[str, Any] = run_in_uml(
        f"""
        import traceback
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import cgroup_scenes
        seen = {{}}
        for name, arguments in {ON_V2!r}.items():
            try:
                seen[name] = getattr(cgroup_scenes, name)(f"/scene-{{name}}", **arguments)
            except Exception:
                seen[name] = traceback.format_exc()
        report(seen)
        """,
        timeout=840,
    )
    return seen


def on_v2(scene: str, root: str, **arguments: Any) -> Any:
    assert arguments == ON_V2[scene]
    seen = seen_on_v2()[scene]
    if isinstance(seen, str):
        pytest.fail(seen)
    return seen


@pytest.fixture(
    params=[
        pytest.param(on_this_machine, marks=pytest.mark.root, id="this-machine"),
        pytest.param(on_v2, marks=[pytest.mark.uml, pytest.mark.slow], id="uml-v2"),
    ]
)
def play(request: pytest.FixtureRequest, private_root: str) -> Scene:
    """Return a function that runs a scene by name with a private cgroup root."""
    return lambda scene, **arguments: request.param(scene, private_root, **arguments)


def test_worked_example(play):
    seen = play("worked_example")
    shares = {
        "kubepods": 3072,
        "burstable": 2048,
        "besteffort": 2,
        "g": 1024,
        "b": 2048,
        "e": 2,
        "g/c0": 1024,
        "b/c0": 1024,
        "b/c1": 1024,
        "e/c0": 2,
    }
    if seen["version"] == 2:
        shares = {key: shares_to_weight(number) for key, number in shares.items()}
    assert {key: int(text) for key, text in seen["shares"].items()} == shares
    unlimited = "-1" if seen["version"] == 1 else "max"
    assert seen["memory"] == {
        "kubepods": str(8 * GI),
        "burstable": str(7 * GI),
        "besteffort": str(5 * GI),
        "g": str(GI),
        "b": str(3 * GI),
        "e": unlimited,
        "g/c0": str(GI),
        "b/c0": str(GI),
        "b/c1": str(2 * GI),
        "e/c0": unlimited,
    }
    expected = {"g/c0": 1 / 3, "b/c0": 1 / 3, "b/c1": 1 / 3, "e/c0": 0.0}
    assert seen["cpu"] == pytest.approx(expected, abs=0.03)


def test_cpu_split_is_what_the_shares_promise(play):
    assert play("cpu_split") == pytest.approx({"small": 0.25, "large": 0.75}, abs=0.03)


def test_a_memory_hog_dies_alone(play):
    assert play("memory_hog") == {"killed_by": 9, "neighbour_alive": True}


def test_reservation_follows_pods(play):
    seen = play("reservation_follows")
    assert seen["burstable"] == [256, 224, 224, 80, 256]
    assert seen["besteffort"] == [256, 224, 208, 64, 256]
    assert seen["at_usage"]
    assert seen["survived"]


def test_removed_groups_are_restored(play):
    assert play("outside_changes") == {
        "removed": True,
        "recreated": True,
        "fixed": 2,
        "changed": True,
        "adopted_writes": 0,
        "quiet_writes": 0,
    }


def test_every_file_of_every_level_reads_back(play):
    *differing, counted = play("read_back")
    assert differing == []
    assert counted["files"] > 60


def test_reservations_reach_their_groups(play):
    seen = play("reserved_groups")
    assert seen["system"][0] in ("512", "20")
    assert seen["system"][1:] == [str(64 << 20), "55"]
    assert seen["kube"][0] in ("256", "10")
    assert seen["kube"][1] in ("-1", "max")
    assert seen["kube"][2] == "max"


def test_the_root_is_restored_at_start(play):
    seen = play("root_restored")
    assert len(seen["changed"]) >= 3
    assert seen["restored"]


def test_a_live_container_grows_and_shrinks_without_a_restart(play):
    seen = play("live_resize")
    assert seen["sizes"] == [[64, 64], [256, 256], [256, 256], [64, 64]]
    assert (
        "container c0 memory limit (16777216) below current usage (33554432)" in seen["container"]["message"]
    )
    assert "attempting to set pod memory limit (16777216) below" in seen["pod"]["message"]
    assert seen["pod"]["errno"] == errno.EBUSY
    assert seen["as_made"]
    assert seen["alive"]


def test_a_pod_that_shrank_while_no_agent_ran(play):
    seen = play("shrunk_while_away")
    assert "memory in use" in seen["refusals"]["g"]
    assert seen["limit"] == str(128 << 20)
    assert seen["still"] == ["g"]
    assert seen["alive"]
    assert seen["left"] == {}
    assert seen["after"] == str(16 << 20)


@pytest.mark.slow
def test_a_thousand_pods_leave_nothing(play):
    seen = play("many_pods", count=1000)
    assert seen["found"] == 1000
    assert seen["written"] == seen["expected"]
    assert seen["quiet"] == 0
    assert seen["left"] == seen["levels"]
    assert seen["known"] == 4
    assert seen["bounded"]


def test_leftovers_go_with_their_pod(play):
    seen = play("leftovers")
    assert "processes or child groups are left in it (EBUSY)" in seen["refused"]
    assert seen["pods"] == []
    assert not seen["alive"]


@pytest.mark.uml
@pytest.mark.slow
def test_memory_qos_is_cleared_when_switched_off(private_root):
    seen = on_v2("memory_qos", private_root)
    assert seen["on"] == [str(16 << 20)] * 3
    assert seen["minimum"] == [str(16 << 20), "0", "0"]
    assert seen["container"]["memory.low"] == str(16 << 20)
    assert seen["container"]["memory.high"].isdigit()
    assert seen["unreserved"].keys() & {"memory.min", "memory.low", "memory.high"} == {"memory.high"}
    assert seen["off"] == ["0", "0", "0"]
    assert not {"memory.low", "memory.high"} & seen["container_off"].keys()
