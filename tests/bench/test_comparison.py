"""Two runs of the node bench beside each other: verdicts, conditions, and files that are no result."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.bench.comparison import (
    BETTER,
    OPEN,
    SAME,
    WORSE,
    compared,
    comparison_rows,
    different_conditions,
    read_result,
)
from engine.bench.node import NodeBenchResult
from engine.bench.report import json_report

MACHINE = {"system": "Linux", "python": "3.11"}


def result(phase: str, name: str, *values: float, **options: object) -> NodeBenchResult:
    runs = {"engine": {phase: [{name: value} for value in values]}}
    return NodeBenchResult({"pods": 60, **options}, MACHINE, runs=runs)


@pytest.mark.parametrize(
    ("name", "before", "now", "verdict"),
    [
        ("cpu_s", (0.30, 0.26), (0.20, 0.25), BETTER),
        ("cpu_s", (0.20, 0.25), (0.26, 0.30), WORSE),
        ("cpu_s", (0.20, 0.25), (0.24, 0.30), SAME),
        ("cpu_s", (0.20, 0.25), (0.25, 0.30), SAME),
        ("cpu_s", (0.20,), (0.10, 0.11), OPEN),
    ],
    ids=["better", "worse", "overlapping", "touching", "one-repetition"],
)
def test_a_change_counts_only_beyond_the_spread(
    name: str, before: tuple[float, ...], now: tuple[float, ...], verdict: str
) -> None:
    (figure,) = compared(result("start", name, *before), result("start", name, *now))
    assert figure.verdict == verdict


def test_more_is_better_where_figures_say_so() -> None:
    (figure,) = compared(result("api", "pods_per_s", 9, 10), result("api", "pods_per_s", 11, 12))
    assert figure.verdict == BETTER
    assert figure.ratio == pytest.approx(11.5 / 9.5)


def test_figures_that_only_one_run_has_are_left_out() -> None:
    assert list(compared(result("start", "cpu_s", 1, 1), result("start", "rss_mb", 1, 1))) == []


def test_a_ratio_to_zero_is_a_dash() -> None:
    figures = list(compared(result("restart", "cpu_s", 0, 0), result("restart", "cpu_s", 1, 1)))
    assert comparison_rows(figures) == [["restart", "cpu_s", "0 (0 to 0)", "1 (1 to 1)", "–", WORSE]]


def test_other_differences_are_reported() -> None:
    before, now = result("start", "cpu_s", 1), result("start", "cpu_s", 1, pods=500)
    now.machine = {**MACHINE, "python": "3.13"}
    assert different_conditions(before, now) == ["python: 3.11, now 3.13", "pods: 60, now 500"]
    assert different_conditions(before, before) == []


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    written = result("start", "cpu_s", 0.2, 0.25, load={"mix": {"http": 1}})
    file.write_text(json_report(written))
    assert read_result(file) == written
    assert different_conditions(read_result(file), written) == []


@pytest.mark.parametrize("text", ["", "[]", '{"options": {}}', '{"options": {}, "machine": 3}'])
def test_another_file_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "before.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"before\.json: not a result of `kubengine bench node --output`"):
        read_result(file)
    with pytest.raises(InvalidInput, match=r"missing\.json: No such file"):
        read_result(tmp_path / "missing.json")
