"""Deciding is apart from acting, and no file imports itself by a way around."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine"
ACTS = (
    "asyncio",
    "grpc",
    "google.protobuf",
    "engine.cri",
    "engine.node",
    "engine.server",
    "engine.wire",
)
ROOMS = ("admission", "cgroups", "containers", "devices", "eviction", "images", "probes")


def loaded_by(statement: str) -> set[str]:
    """Return the modules that one statement loads in a new interpreter."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        *(f"import engine.{room}" for room in ROOMS),
        "from engine.admission import preempt",
        "import engine.plan.questions",
        "import engine.plan",
    ],
)
def test_deciding_modules_import_no_acting_ones(statement: str) -> None:
    loaded = loaded_by(statement)
    acting = {name for name in loaded if name.startswith("engine.") and name.endswith(".manager")}
    assert acting | loaded.intersection(ACTS) == set()


def arrows() -> dict[str, set[str]]:
    """Module → the modules that it names anywhere, under TYPE_CHECKING and in functions too."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in ENGINE.rglob("*.py")
        if "wire" not in path.parts
    }
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = found[module] = set()
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                named.update(name if name in modules else node.module for name in whole)
        named.intersection_update(modules)
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected modules: those that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = arrows[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    together = {
        tuple(sorted(other for other in reached[one] if one in reached[other]))
        for one in arrows
        if one in reached[one]
    }
    return [list(modules) for modules in sorted(together)]


def test_circles_are_found() -> None:
    drawn = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"e"}}
    assert circles(drawn) == [["b", "c"], ["e"]]


def test_no_imports_run_in_a_circle() -> None:
    assert circles(arrows()) == []
