"""Phrases that made readers stumble do not come back."""

from __future__ import annotations

import ast
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
    r"(?:a|an|each|one|every|first|last|next|two) looks?": "observation, or reading",
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


NOT_VERBS = {
    "A", "All", "An", "As", "Both", "Each", "Every", "Everything", "For", "From", "How", "If", "In", "It",
    "No", "Of", "On", "One", "Only", "Some", "Something", "That", "The", "There", "These", "They", "This",
    "To", "Two", "What", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why", "With",
    "Without", "Your",
}  # fmt: skip
"""First words that showed a docstring without a verb at its beginning."""


def first_word_is_wrong(docstring: str) -> bool:
    """Tell whether a docstring plainly does not begin with an imperative.

    "Raised" begins that of an error, and "Parameters" that of a question's parameters. An article, a question
    word, a name in code, a plural or third person, and a participle are found. Other nouns are not.
    """
    word = docstring.split(maxsplit=1)[0].rstrip(".,:;")
    if word in ("Raised", "Parameters"):
        return False
    return (
        not re.fullmatch(r"[A-Z][a-z]+(?:-[a-z]+)?", word)
        or word in NOT_VERBS
        or re.search(r"[^s]s$|[^e]ed$", word) is not None
    )


def docstrings() -> Iterator[tuple[Path, str, str]]:
    """Yield the module, name and docstring of every class and function, except those of single tests."""
    for folder in ("engine", "tests", "bench", "fuzz", "package", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            if "wire" not in path.parts:
                for node in ast.walk(ast.parse(path.read_text(), str(path))):
                    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                        text = ast.get_docstring(node)
                        if text and not node.name.startswith("test_"):
                            yield path.relative_to(ROOT), node.name, text


def test_docstrings_begin_with_a_verb() -> None:
    wrong = {
        f"{path}: {name}: {text.splitlines()[0]}"
        for path, name, text in docstrings()
        if first_word_is_wrong(text)
    }
    assert wrong == set()


@pytest.mark.parametrize("text", ["The pods.", "`size` is bytes.", "Pods by uid.", "Returns it.", "Listed."])
def test_a_docstring_without_a_verb_would_be_noticed(text: str) -> None:
    assert first_word_is_wrong(text)


@pytest.mark.parametrize("text", ["Return the pods.", "Raised if it fails.", "Pass it on.", "Bind-mount it."])
def test_a_docstring_with_a_verb_passes(text: str) -> None:
    assert not first_word_is_wrong(text)
