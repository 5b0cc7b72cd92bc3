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
    r"passed over": "ignored, or skipped",
    r"promised": "reserved",
    r"given back": "released, or returned",
    r"taken away": "removed",
    r"(?:is|was) none of": "is not one of",
    r"looked at": "read, checked, or evaluated",
    r"(?:has|have) not got": "does not have, or lacks",
    r"(?:is|are|was|were) told": "receives, or is called",
    r"cannot be (?:told|had)": "is unknown, or is not available",
    r"belongs to no": "is not in a",
    r"in hand": "current",
    r"cut short": "interrupted",
    r"in vain": "without success",
    r"(?:once its|its) aliases are opened": "after expanding its aliases",
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


@pytest.mark.parametrize(
    "phrase",
    ["made anew", "what is said", "the status is another; other ones follow", "a file is passed over"],
)
def test_a_phrase_would_be_noticed(phrase: str) -> None:
    assert faults(f"line\n{phrase}") == [f"line 2: {FOUND.search(phrase)[0]}"]  # type: ignore[index]
