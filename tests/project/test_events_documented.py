"""The reference of events names every event that the agent records, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "docs/reference/events.md").read_text()


def parts(of_modules_with: str) -> Iterator[ast.AST]:
    """Yield all syntax nodes of the package's modules whose text has the pattern."""
    for text in (path.read_text() for path in (ROOT / "engine").rglob("*.py")):
        if re.search(of_modules_with, text):
            yield from ast.walk(ast.parse(text))


def recorded() -> set[str]:
    """Return the reasons that are literals next to an event's type."""
    found = set()
    for node in parts("NORMAL|WARNING"):
        if isinstance(node, ast.Call):
            for kind, reason in zip(node.args, node.args[1:], strict=False):
                named = isinstance(kind, ast.Name) and kind.id in ("NORMAL", "WARNING")
                if named and isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                    found.add(reason.value)
    return found


def test_every_recorded_reason_is_there() -> None:
    reasons = recorded()
    assert len(reasons) > 15
    assert reasons - set(re.findall(r"`(\w+)`", TABLES)) == set()


def test_every_reason_that_is_there_is_in_the_code() -> None:
    reasons = {
        name
        for row in re.findall(r"^\| (`.*?) \|", TABLES, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    resized = {f"Resize{name}" for name in ("Deferred", "Infeasible")}
    sought = {*reasons, *(name.removeprefix("Resize") for name in resized)}
    words = {
        node.value
        for node in parts(f"""["']({"|".join(sought)})["']""")
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    built = {f"OutOf{name}" for name in ("cpu", "memory", "pods")}  # of the resource's name
    built |= {name for name in resized if name.removeprefix("Resize") in words}
    assert reasons - words - built == set()
