"""Test resource control as a user sees it: manifests in, cgroup files and pod status out.

It runs on this machine's hierarchies with containerd, and on cgroup v2 with the embedded runtime in User-Mode
Linux. One boot there serves every scene, another has systemd as init.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_scenes
import pytest

from engine.cgroups.formulas.conversion import shares_to_weight
from engine.testing.uml import run_in_uml, systemd_available

pytestmark = [pytest.mark.root, pytest.mark.slow]

needs_systemd = pytest.mark.skipif(
    not systemd_available(), reason="needs systemd and its bus (Debian: systemd, dbus)"
)

Play = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def seen_on_v2() -> dict[str, Any]:
    """Return the result of each scene on cgroup v2, by name."""
    return in_uml(list(node_scenes.SCENES), "/whole-node")


def in_uml(scenes: list[str], cgroup_root: str, driver: str = "cgroupfs") -> dict[str, Any]:
    seen: dict[str, Any] = run_in_uml(
        f"""
        import asyncio, pathlib
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
        import node_scenes
        scenes = node_scenes.on_embedded_runtime(
            {scenes!r}, pathlib.Path(SCRATCH), {cgroup_root!r}, {driver!r}
        )
        report(asyncio.run(scenes))
        """,
        systemd=driver == "systemd",
    )
    return seen


@pytest.fixture(
    params=[
        pytest.param("containerd", marks=pytest.mark.containerd),
        pytest.param("uml-v2", marks=pytest.mark.uml),
    ]
)
def play(request: pytest.FixtureRequest, tmp_path: Path, private_cgroup_root: str) -> Play:
    """Return a function that gives a scene's result by its name."""
    if request.param == "uml-v2":
        return dict(request.getfixturevalue("seen_on_v2")).__getitem__
    socket = request.getfixturevalue("containerd").socket
    return lambda scene: asyncio.run(node_scenes.on_node([scene], tmp_path, socket, private_cgroup_root))[
        scene
    ]


def test_the_worked_example(play: Play):
    check_worked_example(play("worked_example"))


@pytest.mark.uml
@needs_systemd
def test_the_worked_example_where_systemd_is_init():
    """Skip the resize: when a pod's slice changes, systemd removes the controllers of groups that it did not
    make.

    The embedded runtime makes such groups in the slice.
    """
    check_worked_example(in_uml(["worked_example"], "", "systemd")["worked_example"])


def check_worked_example(seen: dict[str, Any]) -> None:
    shares = {
        "burstable": 512,
        "besteffort": 2,
        "g": 256,
        "b": 512,
        "e": 2,
        "g/a": 256,
        "b/a": 256,
        "b/b": 256,
        "e/a": 2,
    }
    if seen["version"] == 2:
        shares = {key: shares_to_weight(number) for key, number in shares.items()}
    assert {key: seen["shares"][key] for key in shares} == shares
    quota = {"g": "25000", "b": "75000", "g/a": "25000", "b/a": "25000", "b/b": "50000"}
    unlimited = "-1" if seen["version"] == 1 else "max"
    assert seen["quota"] == dict.fromkeys(seen["quota"], unlimited) | quota
    memory = seen["memory"]
    node = memory["kubepods"]
    assert memory == {
        "kubepods": node,
        "burstable": node - 64,
        "besteffort": node - 64 - 128,
        "g": 64,
        "b": 192,
        "e": None,
        "g/a": 64,
        "b/a": 64,
        "b/b": 128,
        "e/a": None,
    }
    assert not {"changed-file", "missing-group"} & set(seen["faults"])
    assert seen["left"] == ["besteffort", "burstable"]


def test_a_memory_hog_is_oom_killed_in_its_own_pod(play: Play):
    seen = play("memory_hog")
    assert seen["reason"] == "OOMKilled"
    assert seen["exit_code"] == 137
    assert seen["calm"] == ["Running", 0, "oom_kill 0"]
    assert seen["dies_whole"] == (seen["version"] == 2)


def test_a_manifest_resizes_a_live_container_up_and_down(play: Play):
    seen = play("live_resize")
    assert seen["sizes"] == [
        [["25000", 64, "12500"]] * 2,
        [["100000", 256, "50000"]] * 2,
        [["10000", 32, "5000"]] * 2,
    ]
    assert seen["reported"] == [{"cpu": "1", "memory": "256Mi"}, {"cpu": "100m", "memory": "32Mi"}]
    assert seen["completed"] == 2
    assert seen["infeasible"] == [["10000", 32, "5000"]] * 2
    assert seen["same"]
