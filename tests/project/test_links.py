"""Every link in a document leads to a file, and to a heading that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
IDS = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[tuple[str, str]]:
    """Target and anchor of each link that stays among the files."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", _FENCED.sub("", text))
    return [(target, anchor) for target, anchor in found if "://" not in target]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub and the site derive from the headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_a_link_leads_to_a_file_and_a_heading_of_it(document: Path) -> None:
    for target, anchor in links(document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text()), f"{target}#{anchor}"


def test_a_link_that_leads_nowhere_is_seen() -> None:
    text = "# A `b`, the c's\n[x](a.md#b) [y](#a-b-the-cs) [z](https://a.b/c#d)\n```\n[q](z)\n# no\n```\n"
    assert links(text) == [("a.md", "b"), ("", "a-b-the-cs")]
    assert anchors(text) == {"a-b-the-cs"}
