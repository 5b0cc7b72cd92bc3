"""The reference of events names what is recorded, and nothing that isn't."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "docs/reference/events.md").read_text()
CODE = [ast.parse(path.read_text()) for path in (ROOT / "engine").rglob("*.py")]


def recorded() -> set[str]:
    """Reasons that stand as words beside the type, where an event is recorded."""
    found = set()
    for node in (node for tree in CODE for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            for kind, reason in zip(node.args, node.args[1:], strict=False):
                named = isinstance(kind, ast.Name) and kind.id in ("NORMAL", "WARNING")
                if named and isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                    found.add(reason.value)
    return found


def test_every_recorded_reason_is_there() -> None:
    assert len(recorded()) > 15
    assert recorded() - set(re.findall(r"`(\w+)`", TABLES)) == set()


def test_every_reason_that_is_there_is_in_the_code() -> None:
    words = {
        node.value
        for tree in CODE
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    reasons = {
        name
        for row in re.findall(r"^\| (`.*?) \|", TABLES, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    built = {f"OutOf{name}" for name in ("cpu", "memory", "pods")}  # of the resource's name
    built |= {f"Resize{name}" for name in ("Deferred", "Infeasible") if name in words}
    assert reasons - words - built == set()
