"""What the documents show: blocks of a language, and the command lines in them and in their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
IDS = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
_PLACEHOLDER = re.compile(r" (?:[A-Z]+|VERB .*)$|…")

KUBECTL = "#!/bin/sh\nexec kubengine plan synth --nodes 5 --pods-per-node 30 --json\n"
"""Stands in for the one that a cluster's user has."""


def blocks(document: Path, language: str) -> list[str]:
    """Return the blocks of a language; all blocks are matched, so that no end is taken for a beginning."""
    found = re.findall(r"^( *)```([^\n`]*)\n(.*?)^ *```$", document.read_text(), re.MULTILINE | re.DOTALL)
    return [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        for indent, named, text in found
        if named == language
    ]


def command_lines(document: Path) -> list[str]:
    """Return each command line that a reader may type, without its comment.

    These are the lines of `sh` blocks, those after a prompt in other blocks, and code spans in the text whose
    arguments need not be filled in.
    """
    text = document.read_text()
    found = [line for block in blocks(document, "sh") for line in _lines(block)]
    for language in ("", "console"):
        for block in blocks(document, language):
            found += _lines("\n".join(re.findall(r"^[$#] (.*)", block, re.MULTILINE)))
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`((?:kubengine|kubectl get) [^`\n]+)`", outside)
    return found + [span for span in spans if _is_whole(span)]


def _lines(block: str) -> Iterator[str]:
    joined = re.sub(r" *\\\n\s*", " ", block)
    return (bare for line in joined.splitlines() if (bare := re.sub(r"(^|\s+)#.*", "", line)))


def _is_whole(span: str) -> bool:
    """Not the name of a command, and nothing to fill in."""
    names = re.fullmatch(r"kubengine( [a-z-]+)*", span)
    return names is None and _PLACEHOLDER.search(span) is None
