"""Run programs in a new interpreter, which has loaded nothing yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed(program: str) -> str:
    """Return what a program prints, without the space around it."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
