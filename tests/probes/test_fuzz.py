"""The fuzzing harnesses build and find nothing in a bounded time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("clang") or shutil.which("cc")), reason="needs a C compiler")
def test_fuzz_for_half_a_minute():
    program = Path(__file__).parents[2] / "fuzz" / "run.py"
    done = subprocess.run(
        [sys.executable, program, "--seconds", "30"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
