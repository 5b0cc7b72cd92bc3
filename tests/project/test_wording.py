"""Phrases that made readers stumble do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PHRASES = {
    r"anew": "again",
    r"other ones": "different",
    r"(?:is|are) said": "name who reports it, and where",
    r"(?:waited for|heard|wanted) no more": "no longer",
    r"that there are no more": "that no longer exist",
    r"stands? there": "is listed, or exists",
    r"who comes": "the new peer",
    r"the agent's house": "the agent",
    r"room of (?:its|their) own": "package",
}
"""A phrase as a pattern, and what to write instead."""
FOUND = re.compile("|".join(rf"(?<![\w-]){phrase}(?![\w-])" for phrase in PHRASES))


def texts() -> Iterator[Path]:
    for pattern in ("*.py", "*.pyx", "*.h"):
        yield from (path for path in (ROOT / "engine").rglob(pattern) if "wire" not in path.parts)
    yield from (ROOT / "docs").rglob("*.md")
    yield from ROOT.glob("*.md")


def faults(text: str) -> list[str]:
    return [f"line {text[: match.start()].count(chr(10)) + 1}: {match[0]}" for match in FOUND.finditer(text)]


def test_phrases_that_made_readers_stumble_stay_away() -> None:
    wrong = {str(path.relative_to(ROOT)): found for path in texts() if (found := faults(path.read_text()))}
    assert not wrong, "plainer words are in PHRASES"


@pytest.mark.parametrize("phrase", ["made anew", "what is said", "the status is another; other ones follow"])
def test_a_phrase_would_be_noticed(phrase: str) -> None:
    assert faults(f"line\n{phrase}") == [f"line 2: {FOUND.search(phrase)[0]}"]  # type: ignore[index]
