"""Disks for tests: loop devices upon files of their own, and what is on them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE


@contextmanager
def disk(file: Path, size: int = 16 << 20) -> Iterator[Path]:
    """An empty disk of so many bytes, which needs root."""
    with file.open("wb") as opened:
        opened.truncate(size)
    device = Path(run("losetup", "-f", "--show", str(file)))
    try:
        yield device
    finally:
        run("losetup", "-d", str(device))


def run(*command: str) -> str:
    """What a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return done.stdout.strip()


def grow_disk(file: Path, device: Path, size: int) -> None:
    """The disk upon a file has so many bytes from now on."""
    os.truncate(file, size)
    run("losetup", "-c", str(device))
