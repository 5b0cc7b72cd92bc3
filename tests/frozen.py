"""Freeze a process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process and wait until all its threads have stopped; continue it at the end.

    The signal alone returns before the last thread has stopped.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        while not all(_stands(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stands(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
