"""docs/reference/feature-gates.md describes each gate as the code here implements it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from engine.node.nodeinfo.description import DECLARED_FEATURES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/feature-gates.md"
ROW = re.compile(
    r"^\| `(\w+)` \| (GA|beta|alpha|deprecated) \| (on|off) \| (set|on|off)\b(.*) \|$", re.MULTILINE
)
ONLY_A_HINT = {"ImageVolume"}
"""Always on; by default the agent asks fewer containers for their image volumes than with the gate."""


def rows() -> dict[str, tuple[bool, str]]:
    """Return the default in v1.36 and the setting of this agent for each gate."""
    return {name: (default == "on", here) for name, _, default, here, _ in ROW.findall(PAGE.read_text())}


def settings_read() -> dict[str, set[bool]]:
    """Return the gates that the engine asks its configuration for, with the defaults that it names."""
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "engine").rglob("*.py")}
    constants = {
        (path.stem, name): gate for path, tree in trees.items() for name, gate in _gates_named(tree).items()
    }
    found: dict[str, set[bool]] = {}
    for path, tree in trees.items():
        origins = {
            alias.asname or alias.name: (node.module or "").rpartition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".gate"):
                name, default = call.args
                assert isinstance(default, ast.Constant)
                if isinstance(name, ast.Constant):
                    gate = name.value
                elif isinstance(name, ast.Attribute):
                    gate = constants[ast.unparse(name.value), name.attr]
                else:
                    text = ast.unparse(name)
                    gate = constants.get((origins.get(text, path.stem), text))  # None in a loop over gates
                if gate is not None:
                    found.setdefault(gate, set()).add(default.value)
    return {gate: values for gate, values in found.items() if gate not in ONLY_A_HINT}


def _gates_named(tree: ast.Module) -> dict[str, str]:
    """Return the constants NAME_GATE = "Gate" of a module, those of several names in one line too."""
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for name, value in zip(names, values, strict=False):
            if isinstance(name, ast.Name) and name.id.endswith("GATE") and isinstance(value, ast.Constant):
                found[name.id] = value.value
    return found


def test_each_row_is_read_as_one() -> None:
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows()) == len(table)
    assert list(rows()) == sorted(rows())


def test_the_gates_that_can_be_set_are_those_that_the_agent_reads() -> None:
    settable = {name for name, (_, here) in rows().items() if here == "set"}
    assert settable == settings_read().keys()


def test_the_agents_defaults_are_those_of_the_table() -> None:
    defaults = {name: default for name, (default, _) in rows().items()}
    assert {gate: values for gate, values in settings_read().items() if values != {defaults[gate]}} == {}


def test_declared_features_have_a_row_and_are_on() -> None:
    assert [name for name in DECLARED_FEATURES if name not in rows() or rows()[name][1] == "off"] == []
