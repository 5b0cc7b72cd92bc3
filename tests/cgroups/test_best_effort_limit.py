"""Give BestEffort pods the CPU that others leave: the rule alone, and on real kernels.

The kernels are this machine's hierarchies, and cgroup v2 in one boot of User-Mode Linux.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import best_effort_scenes
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CgroupsSection
from engine.cgroups.best_effort_limiter import machine_busy
from engine.cgroups.formulas.best_effort_limit import BestEffortLimitRules, Used
from engine.cgroups.formulas.settings import CgroupSettings
from engine.testing.uml import run_in_uml

RULES = BestEffortLimitRules(capacity=10_000, reserved=500, percent=80, floor_percent=5)


@pytest.mark.parametrize(
    ("used", "left"),
    [
        (Used(0, 0, 0), 7500),
        (Used(3000, 2000, 0), 5000),
        (Used(6000, 5000, 3000), 5000),
        (Used(10_000, 9500, 0), 500),
        (Used(200, 100, 100), 7500),
        (Used(100, 300, 400), 7500),
    ],
)
def test_other_usage_is_subtracted_and_the_system_counts_at_least_its_reservation(used: Used, left: int):
    assert RULES.left(used) == left


def test_the_ceiling_falls_at_once_and_rises_slowly():
    assert RULES.ceiling(Used(5500, 5000, 0), None) == 2500
    assert RULES.ceiling(Used(7500, 7000, 0), 5000) == 500
    assert RULES.ceiling(Used(0, 0, 0), 500) == 1500
    assert RULES.ceiling(Used(0, 0, 0), 7000) == 7500


def test_small_differences_are_not_written():
    assert RULES.ceiling(Used(5599, 5099, 0), 2500) == 2500
    assert RULES.ceiling(Used(5401, 4901, 0), 2500) == 2500
    assert RULES.ceiling(Used(5600, 5100, 0), 2500) == 2400


def test_a_limit_just_below_the_whole_is_lifted_once_nobody_else_works():
    assert RULES.ceiling(Used(0, 0, 0), RULES.whole - 1) == RULES.whole
    assert RULES.ceiling(Used(501, 1, 0), RULES.whole) == RULES.whole


def test_best_effort_counts_as_limited_until_it_uses_much_less():
    assert RULES.holds(1000, Used(0, 0, 950), held=False)
    assert not RULES.holds(1000, Used(0, 0, 850), held=False)
    assert RULES.holds(1000, Used(0, 0, 850), held=True)
    assert not RULES.holds(1000, Used(0, 0, 650), held=True)
    assert not RULES.holds(RULES.whole, Used(0, 0, 9000), held=True)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (CgroupsSection(best_effort_ceiling=101), "cgroups.bestEffortCeiling: expected 1 to 100"),
        (CgroupsSection(best_effort_ceiling=-1), "cgroups.bestEffortCeiling: expected 1 to 100"),
        (CgroupsSection(best_effort_ceiling=50, best_effort_floor=0), "cgroups.bestEffortFloor: expected 1"),
        (CgroupsSection(best_effort_ceiling=50, best_effort_floor=51), "cgroups.bestEffortFloor: expected 1"),
    ],
)
def test_impossible_values_are_refused(section: CgroupsSection, message: str):
    with pytest.raises(InvalidInput, match=message):
        CgroupSettings.resolve(KubeletConfiguration(), {"cpu": 1000}, cgroup_v2=True, section=section)


def test_best_effort_pods_never_get_reserved_cpus():
    config = KubeletConfiguration(
        kube_reserved={"cpu": "300m"}, system_reserved={"cpu": "200m"}, eviction_hard={}
    )
    section = CgroupsSection(best_effort_ceiling=80)
    settings = CgroupSettings.resolve(config, {"cpu": 10_000}, cgroup_v2=True, section=section)
    assert settings.best_effort_limit == RULES
    assert CgroupSettings.resolve(config, {"cpu": 1000}, cgroup_v2=True).best_effort_limit is None


def test_time_that_the_hypervisor_took_is_busy(tmp_path: Path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 200 300 9999 9999 10 20 70 50 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    assert machine_busy(stat) == 7.0
    assert machine_busy() > 0


Play = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def seen_on_v2() -> dict[str, Any]:
    seen: dict[str, Any] = run_in_uml(
        f"""
        import asyncio
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
        import best_effort_scenes
        report({{
            "squeezed": asyncio.run(best_effort_scenes.squeezed("/squeezed")),
            "idle": best_effort_scenes.idle("/idle"),
        }})
        """,
    )
    return seen


@pytest.fixture(
    params=[
        pytest.param("here", marks=pytest.mark.root),
        pytest.param("uml-v2", marks=[pytest.mark.uml, pytest.mark.slow]),
    ]
)
def play(request: pytest.FixtureRequest, private_root: str) -> Play:
    if request.param == "uml-v2":
        return dict(request.getfixturevalue("seen_on_v2")).__getitem__

    def here(scene: str) -> dict[str, Any]:
        seen = getattr(best_effort_scenes, scene)(private_root)
        return asyncio.run(seen) if asyncio.iscoroutine(seen) else seen

    return here


def test_best_effort_pods_are_held_to_what_others_leave_and_get_it_back(play: Play):
    seen = play("squeezed")
    unlimited = seen["stopped"]
    assert unlimited in ("-1", "max")
    assert list(seen["no pods"]) == list(seen["gone"]) == [None, unlimited]
    assert seen["decided"] == ["limited", "released"]
    fallen = seen["falling"][-1]
    assert 100 <= fallen < 1600
    assert len(set(seen["in force"])) == 1
    (sample,), expected = seen["gauge"]
    assert sample[1] == expected
    assert 0 < seen["pod's use"][0] <= seen["pod's use"][1]
    rising = [ceiling for ceiling in seen["rising"] if ceiling is not None]
    assert max(rising) > fallen
    assert all(after - before <= 200 for before, after in zip([fallen, *rising], rising, strict=False))
    assert seen["inputs"].keys() == {"capacity", "ceiling", "node", "pods", "bestEffort"}
    assert seen["again"]


def test_an_idle_level_stays_so_and_ends_it_where_it_is_not_asked_for_any_more(play: Play):
    seen = play("idle")
    assert seen == {"idle": "1", "drift": 0, "after": ["0", seen["after"][1]]}
    assert seen["after"][1] in ("2", "1")
