"""`import engine`: cheap, whole, and as the README shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import engine
import engine.testing

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().partition("## As a library")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


def test_importing_it_loads_nothing_of_weight() -> None:
    heavy = {"numpy", "grpc", "msgspec", "pyarrow"}
    program = f"import sys, engine, engine.testing; print(sorted(sys.modules.keys() & {heavy}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def test_every_name_is_there_and_no_other() -> None:
    for face in (engine, engine.testing):
        for name in face.__all__:
            assert getattr(face, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Kubelet'"):
        engine.Kubelet  # noqa: B018
