"""Scripts that tests run in a Python of their own, where nothing is loaded yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def output_of(script: str, *arguments: str) -> str:
    """Run a script to its end, and return what it printed. Every warning is an error."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env={name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"},
        check=False, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert run.returncode == 0, (run.returncode, run.stderr)
    return run.stdout.strip()
