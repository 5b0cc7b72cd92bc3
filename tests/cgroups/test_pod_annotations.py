"""Annotations that ask for more of cgroups than Kubernetes' fields can: what is understood, and what it does
on this machine's hierarchies and in one boot of a cgroup v2 kernel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pod_annotation_scenes
import pytest
from cgroup_scenes import best_effort, guaranteed

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CgroupsSection
from engine.cgroups.formulas.pod_annotations import FILES, NAMES, PodAnnotations, read_annotations
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.manager import device_number
from engine.cgroups.plan import plan
from engine.testing.uml import run_in_uml


def understood(**annotations: str) -> PodAnnotations:
    return read_annotations(
        pod_annotation_scenes.annotated(guaranteed("g"), **annotations), NAMES, lambda path: f"8:{len(path)}"
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, PodAnnotations()),
        ({"other": "x"}, PodAnnotations()),
        ({"cpu_burst": "50%"}, PodAnnotations(cpu_burst=50)),
        ({"oom_group": "process"}, PodAnnotations(oom_group="process")),
        ({"swap": "1Gi"}, PodAnnotations(swap=str(1 << 30))),
        ({"swap": "0"}, PodAnnotations(swap="0")),
        ({"swap": "max"}, PodAnnotations(swap="max")),
        ({"io_weight": "10000"}, PodAnnotations(io_weight=10000)),
        (
            {"io_max": "9:16 wbps=1Mi; /dev/sda riops=100 rbps=max;"},
            PodAnnotations(
                io_max=(
                    "8:8 rbps=max wbps=max riops=100 wiops=max",
                    "9:16 rbps=max wbps=1048576 riops=max wiops=max",
                )
            ),
        ),
    ],
)
def test_how_annotations_are_read(annotations: dict[str, str], expected: PodAnnotations):
    assert understood(**annotations) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("cpu-burst", text) for text in ("", "50", "101%", "-1%", "half")),
        *(("oom-group", text) for text in ("", "Pod", "node")),
        *(("swap", text) for text in ("", "-1", "much")),
        *(("io-weight", text) for text in ("", "0", "10001", "1.5", "٣")),
        *(
            ("io-max", text)
            for text in (
                "", ";", "8:0", "8:0 rbps", "8:0 rbps=0", "8:0 rbps=1 rbps=2", "8:0 speed=1",
                "8:0 rbps=1; 8:0 wbps=1", "8:0 rbps=fast",
            )
        ),
    ],
)  # fmt: skip
def test_an_annotation_that_makes_no_sense_is_named(name: str, text: str):
    with pytest.raises(InvalidInput, match=f"kubengine.dev/{name}: expected"):
        understood(**{name.replace("-", "_"): text})


@pytest.mark.parametrize("path", ["/nowhere/sda", "/dev/null", "/", "a\0b"])
def test_only_a_block_device_has_a_number_that_counts(path: str):
    with pytest.raises(InvalidInput):
        device_number(path)


def test_an_annotation_that_the_node_does_not_enable_has_no_effect():
    pod = pod_annotation_scenes.annotated(guaranteed("g"), cpu_burst="nonsense", swap="1Gi")
    assert read_annotations(pod, ["io-max"], device_number) == PodAnnotations()


@pytest.mark.parametrize(
    ("names", "v2", "message"),
    [
        (["turbo"], True, "'turbo' is not one of"),
        (["cpu-burst", "swap"], False, "swap needs cgroup v2"),
    ],
)
def test_names_that_the_node_cannot_have_are_refused(names: list[str], v2: bool, message: str):
    with pytest.raises(InvalidInput, match=f"cgroups.podAnnotations: {message}"):
        CgroupSettings.resolve(
            KubeletConfiguration(), {}, cgroup_v2=v2, section=CgroupsSection(pod_annotations=names)
        )


def test_every_name_has_a_file_under_v2():
    assert set(FILES[2]) == set(NAMES)


def test_a_plan_shows_them():
    pods = [
        pod_annotation_scenes.annotated(
            guaranteed("g", "200m"), cpu_burst="50%", oom_group="pod", swap="64Mi"
        ),
        pod_annotation_scenes.annotated(best_effort("e"), cpu_burst="50%", oom_group="process"),
    ]
    section = CgroupsSection(pod_annotations=["cpu-burst", "oom-group", "swap"])
    groups = plan(pods, KubeletConfiguration(), section, {"cpu": 2000, "memory": 4 << 30})
    shown = {
        group.path: {file: group.files.get(file) for file in FILES[2].values()}
        for group in groups
        if group.kind in ("pod", "container")
    }
    nothing = dict.fromkeys(FILES[2].values())
    swapped = {"memory.oom.group": "1", "memory.swap.max": str(64 << 20)}
    assert shown == {
        "/kubepods/podg": nothing | swapped | {"cpu.max.burst": "10000"},
        "/kubepods/podg/c0": nothing | swapped,
        "/kubepods/besteffort/pode": nothing | {"cpu.max.burst": "0"},
        "/kubepods/besteffort/pode/c0": nothing,
    }


@pytest.mark.root
def test_saved_burst_is_spent_above_the_limit(private_root: str):
    seen = pod_annotation_scenes.burst(private_root)
    assert seen["burst"] == {"plain": "0", "saving": "20000"}
    assert seen["metric"]
    assert seen["bursts"]["plain"] == 0 < seen["bursts"]["saving"]


@cache
def seen_on_v2(directory: Path) -> dict[str, Any]:
    disk = directory / "disk"
    with disk.open("wb") as file:
        file.truncate(16 << 20)
    seen: dict[str, Any] = run_in_uml(
        f"""
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
        import pod_annotation_scenes
        report({{
            "killed_together": pod_annotation_scenes.killed_together("/killed"),
            "limited": pod_annotation_scenes.limited("/limited", SCRATCH),
        }})
        """,
        disk=disk,
    )
    return seen


@pytest.fixture(scope="module")
def on_v2(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return seen_on_v2(tmp_path_factory.mktemp("uml"))


@pytest.mark.uml
@pytest.mark.slow
class TestOnV2:
    def test_the_oom_group_follows_the_annotation(self, on_v2: dict[str, Any]):
        """Where the pod as a whole runs out of memory."""
        assert on_v2["killed_together"] == {"process": ["beside", "calm"], "container": ["calm"], "pod": []}

    def test_limits_of_swap_and_disks_reach_the_kernel_and_stay(self, on_v2: dict[str, Any]):
        seen = on_v2["limited"]
        limits = "98:0 rbps=max wbps=1048576 riops=100 wiops=max"
        assert seen["burst"] == ["10000"] * 2
        assert seen["swap"] == [str(16 << 20)] * 2
        assert (seen["io"], seen["quiet"], seen["restored"]) == (limits, 0, limits)
        assert "7:99" in seen["refused"]
        assert seen["no_file"].startswith("this kernel has no such file: io-weight")
