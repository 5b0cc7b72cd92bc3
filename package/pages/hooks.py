"""Implement the hooks of mkdocs for the site (`hooks` in mkdocs.yml).

They add the documents outside of `docs`, rewrite links to the places of their targets on the site, and
generate pages from the code.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import pictures
import reference
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BESIDE = {
    "project/readme.md": "README.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/security.md": "SECURITY.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/benchmarks.md": "bench/README.md",
}
_PLACE = {source: page for page, source in BESIDE.items()}
_WRITTEN = {
    "reference/commands.md": reference.commands,
    "reference/python.md": reference.python,
    "reference/kernels.md": reference.kernels,
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^ *```")
_ITEM = re.compile(r"(- |\d+\. )")
STYLE = "assets/decision.css"


def on_files(files: Files, *, config: Any) -> Files:
    for page, source in BESIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, write in _WRITTEN.items():
        files.append(File.generated(config, page, content=write()))
    files.append(File.generated(config, STYLE, abs_src_path=str(Path(__file__).with_name("decision.css"))))
    config.extra_css.append(STYLE)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: Any, files: Files) -> str:
    here = page.file.src_uri
    if here == "reference/metrics.md":
        markdown = markdown.partition(reference.METRICS)[0] + reference.metrics()
    markdown = _LINK.sub(lambda link: _led(link, here), markdown)
    markdown = pictures.BLOCK.sub(lambda block: pictures.drawn(block[1]), markdown)
    return _separated(markdown)


def _led(link: re.Match[str], here: str) -> str:
    """Return a link as it must be on page `here`, or only its text if its target is not on the site."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if not target or "://" in target or here in _WRITTEN:
        return link[0]
    source = BESIDE.get(here, f"docs/{here}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    place = path.removeprefix("docs/") if path.startswith("docs/") else _PLACE.get(path)
    if place is None:
        return text
    return f"[{text}]({posixpath.relpath(place, posixpath.dirname(here))}{anchor})"


def _separated(markdown: str) -> str:
    """Insert an empty line before each list, which mkdocs' Markdown needs."""
    lines: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        fenced ^= bool(_FENCE.match(line))
        before = lines[-1] if lines else ""
        if not fenced and _ITEM.match(line) and before and not _ITEM.match(before) and before[0] != " ":
            lines.append("")
        lines.append(line)
    return "\n".join(lines)
