"""Loop devices, by the file that is behind them. Source: loop(4)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

_LOOP_CLR_FD: Final = 0x4C01
_DELETED: Final = " (deleted)"


def loop_devices(file: Path, sys: Path = Path("/sys/block")) -> list[Path]:
    """Those behind which the file is, whatever is mounted on it by now."""
    found = []
    for backing in sys.glob("loop*/loop/backing_file"):
        try:
            behind = backing.read_text(errors="surrogateescape").rstrip("\n")
        except OSError:  # let go of meanwhile
            continue
        if behind.removesuffix(_DELETED) == str(file):
            found.append(Path("/dev", backing.parts[-3]))
    return found


def detach_loop_devices(file: Path) -> None:
    """Lets go of a file; a device that is in use goes when it is not any more. Raises `OSError`."""
    for path in loop_devices(file):
        device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _LOOP_CLR_FD)
        finally:
            os.close(device)
