"""Finds and detaches loop devices by their backing file. Source: loop(4)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

_LOOP_CLR_FD: Final = 0x4C01
_DELETED: Final = " (deleted)"


def loop_devices(file: Path, sys: Path = Path("/sys/block")) -> list[Path]:
    """Return the devices with this backing file, whatever is mounted on it by now."""
    found = []
    for backing in sys.glob("loop*/loop/backing_file"):
        try:
            behind = backing.read_text(errors="surrogateescape").rstrip("\n")
        except OSError:  # detached meanwhile
            continue
        # The kernel appends this to the path of a file that was unlinked while attached.
        if behind.removesuffix(_DELETED) == str(file):
            found.append(Path("/dev", backing.parts[-3]))
    return found


def detach_loop_devices(file: Path) -> None:
    """Detach a file's devices; one in use goes when it is no longer used. Raises `OSError`."""
    for path in loop_devices(file):
        device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Since Linux 3.7 a device in use is detached lazily, when its last user closes it.
            fcntl.ioctl(device, _LOOP_CLR_FD)
        finally:
            os.close(device)
