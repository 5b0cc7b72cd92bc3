"""The site is built without a warning, and what it says of the code is the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import get_args

import pytest

from engine.api.decisions import Kind
from engine.cli import COMMANDS

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "package" / "pages"))

import chart  # noqa: E402


def test_the_chart_shows_the_figures_of_the_density_page() -> None:
    drawn = chart.drawn(chart.DENSITY.read_text())
    assert chart.CHART.read_text() == drawn, "run: python package/pages/chart.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return directory


def words(page: Path) -> str:
    return unescape(re.sub(r"<[^>]*>", "", page.read_text()))


def test_every_document_is_a_page(site: Path) -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        assert (site / document.relative_to(ROOT / "docs")).with_suffix(".html").exists(), document


def test_every_command_is_listed_with_its_help(site: Path) -> None:
    text = words(site / "reference/commands.html")
    for name in COMMANDS:
        assert f"Usage: kubengine {name} " in text
    assert "Usage: kubengine plan preempt " in text


def test_metrics_that_documents_name_are_those_of_a_node(site: Path) -> None:
    """But on the page of a kubelet's, which tests/node/nodeinfo/test_kubelet_series.py holds to nodes."""
    shown = set(re.findall(r"<td><code>([a-z_]+)</code></td>", (site / "reference/metrics.html").read_text()))
    assert {"kubelet_running_pods", "prober_probe_total", "container_memory_working_set_bytes"} <= shown
    named = {
        name
        for document in (ROOT / "docs").rglob("*.md")
        if document.name != "kubelet-series.md"
        for name in re.findall(r"`((?:kubelet|kubengine|prober)_\w+[a-z])`", document.read_text())
    }
    others = {
        "kubelet_internal_checkpoint",
        "kubengine_cpu_baselines",
        "kubengine_records",
        "kubelet_version",
    }  # files, a column
    assert named - others - shown == set()


def test_decisions_are_drawn(site: Path) -> None:
    blocks = (ROOT / "docs/explanation/decisions.md").read_text().count("```decision")
    page = (site / "explanation/decisions.html").read_text()
    assert blocks > 5
    assert page.count('<svg class="decision"') == blocks
    assert "```decision" not in page


def test_every_kind_of_decision_has_a_picture() -> None:
    text = (ROOT / "docs/explanation/decisions.md").read_text()
    sections = dict(re.findall(r"^## (.*)\n+((?:(?!^## ).*\n)*)", text, re.MULTILINE))
    pictures = dict(re.findall(r"^\| `([a-z-]+)` \| \[(.*)\]\(#", text, re.MULTILINE))
    assert set(pictures) == set(get_args(Kind))
    assert [title for title in pictures.values() if "```decision" not in sections[title]] == []
