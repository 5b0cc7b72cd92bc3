"""Peers' text that is not UTF-8 is also an error with protobuf written in Python, the only one for musl."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
TESTED = (
    "tests/fast/test_message_fields.py",
    "tests/dra/test_driver_client.py",
    "tests/devices/test_decisions.py",
)


def test_text_that_is_not_utf_8_is_an_error() -> None:
    """protobuf chooses its implementation when it is imported, so another Python runs the tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "no_text or unreadable"]
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run(
        [*command, *TESTED],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
