"""Make loop devices of files, for tests that need disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE


@contextmanager
def disk(file: Path, size: int = 16 << 20) -> Iterator[Path]:
    """Yield an empty loop device of `size` bytes; needs root."""
    with file.open("wb") as opened:
        opened.truncate(size)
    device = Path(run("losetup", "-f", "--show", str(file)))
    try:
        yield device
    finally:
        run("losetup", "-d", str(device))


def run(*command: str) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return done.stdout.strip()


def grow_disk(file: Path, device: Path, size: int) -> None:
    """Grow the file of a loop device to `size` bytes, and the device with it."""
    os.truncate(file, size)
    run("losetup", "-c", str(device))
