"""Debugging the agent says what the agent does, and not what its libraries read and send."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import PATIENCE

SCRIPT = """
import logging
from engine.cli.agent.logging import begin_logging
begin_logging(logging.DEBUG)
logging.getLogger("kubengine.node").debug("ours")
logging.getLogger("hpack.hpack").debug("authorization: Bearer secret")
logging.getLogger("asyncio").warning("theirs")
"""


def test_libraries_only_warn():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=PATIENCE
    )
    assert "DEBUG kubengine.node: ours" in run.stderr
    assert "WARNING asyncio: theirs" in run.stderr
    assert "secret" not in run.stderr
