"""Of each series of a kubelet the documents say whether it is given, and if not, why; nodes give those.

`data/kubelet_series.json` has names of v1.36 by page, of the kubelet's documented metrics
(`test/instrumentation/documentation`), of one that ran, and of cAdvisor with the groups that a kubelet
switches on; a `*` stands for a library's. What rules and dashboards of kube-prometheus ask for is of August
2026, without the parts of histograms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.cluster_rig import Joined
from tests.node.node_series import shown_series

DATA = json.loads((Path(__file__).parents[1] / "data/kubelet_series.json").read_text())
SERIES: dict[str, set[str]] = {page: set(names) for page, names in DATA["pages"].items()}
PAGE = (Path(__file__).parents[3] / "docs/reference/kubelet-series.md").read_text()
SECTIONS = {
    head: text for head, _, text in (each.partition("\n") for each in re.split(r"^## ", PAGE, flags=re.M)[1:])
}


def named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def given(page: str) -> set[str]:
    """Return the series that the documents list as provided on a page."""
    return set(named(SECTIONS[page].partition("\n| not provided | reason |")[0]))


def not_given(page: str) -> list[str]:
    """Return the names and patterns that the documents list as not provided. Each has a reason."""
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", SECTIONS[page], re.M)
    assert all(reason.strip() for _, reason in rows)
    return [name for names, _ in rows for name in named(names)]


def matching(name: str, patterns: Iterable[str]) -> int:
    return sum(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.mark.parametrize("page", SERIES)
def test_each_series_is_documented_once(page: str) -> None:
    patterns = not_given(page)
    assert given(page) <= SERIES[page], "no series of a kubelet"
    left_out = SERIES[page] - given(page)
    assert {name: matching(name, patterns) for name in left_out} == dict.fromkeys(left_out, 1)
    assert [name for name in given(page) if matching(name, patterns)] == []
    assert [each for each in patterns if not any(fnmatchcase(name, each) for name in left_out)] == []


async def test_a_node_gives_what_the_documents_say_and_nothing_else_of_a_kubelet(
    joined: Joined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = await shown_series(joined, tmp_path / "cgroup", monkeypatch)
    for page, series in SERIES.items():
        assert shown[page].keys() & series == given(page), page


def test_every_series_that_kube_prometheus_queries_exists() -> None:
    """But for goroutines, which there are none of."""
    everything = set().union(*map(given, SERIES))
    assert set(DATA["asked_by_kube_prometheus"]) - everything == {"go_goroutines"}
    assert matching("go_goroutines", not_given("/metrics"))
    assert set(DATA["asked_and_gone_from_kubelets"]) <= set(named(PAGE.partition("\n## ")[0]))
