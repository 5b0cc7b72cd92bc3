"""`beyond-the-kubelet` answers five questions about each feature, and names metrics and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import engine.api.decisions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/beyond-the-kubelet.md").read_text()
SECTIONS = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
SAID = ("Switch", "Costs", "Replaces", "Seen", "Tested by")


def test_each_line_of_the_table_at_the_top_has_its_section() -> None:
    rows = re.findall(r"^\| \[(\d+)\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    titles = [section.splitlines()[0] for section in SECTIONS]
    anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
    assert [anchor for _, anchor in rows] == anchors
    assert [title.split(".")[0] for title in titles] == [number for number, _ in rows]


@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_everything_that_a_section_names_exists(section: str) -> None:
    answers = dict(re.findall(r"^- \*\*([\w ]+)\*\*: (.*)$", section, re.MULTILINE))
    assert tuple(answers) == SAID
    code = "\n".join(path.read_text() for path in (ROOT / "engine").rglob("*.py"))
    metrics = re.findall(r"`(kube\w+)", answers["Seen"])
    assert metrics
    assert not [name for name in metrics if f'"{name}"' not in code]
    kinds = dict(re.findall(r"^\| ([\w-]+) \| (.*) \|$", engine.api.decisions.__doc__ or "", re.MULTILINE))
    words = set(re.findall(r"`([a-z-]+)`", answers["Seen"]))
    assert words & kinds.keys()
    held = re.findall(r"`(tests/[\w/]+\.py)`|`(test_\w+)`", answers["Tested by"])
    tests = ""
    for file, name in held:
        if file:
            tests = (ROOT / file).read_text()
        else:
            assert f"def {name}(" in tests, name
    assert tests
