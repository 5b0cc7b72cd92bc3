"""The fuzzing harnesses build, run and find nothing in a moment; `make fuzz` gives them their time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("clang") or shutil.which("cc")), reason="needs a C compiler")
def test_every_harness_runs():
    program = ROOT / "fuzz" / "run.py"
    done = subprocess.run(
        [sys.executable, program, "--seconds", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    harnesses = {path.stem.removeprefix("fuzz_") for path in (ROOT / "fuzz").glob("fuzz_*.c")}
    assert harnesses < {line.split(":")[0] for line in done.stdout.splitlines()}
