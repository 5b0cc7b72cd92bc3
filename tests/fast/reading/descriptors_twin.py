"""Count the open descriptors of cgroups in plain Python; tests compare the kernel with it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine._fast.reading.descriptors import ABSENT, DESCRIPTOR_COLUMNS, MOST_DESCRIPTORS

_MOST: Final = 1 << 16
_LARGEST_PID: Final = 1 << 22
_LIMIT: Final = b"Max open files"


def count_descriptors(
    proc: str,
    top: str,
    cgroups: list[bytes | None],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    nanoseconds: int,
) -> int:
    """Do what `engine._fast.reading.descriptors.count_descriptors` does, process by process."""
    if counts.shape != (len(cgroups) * len(DESCRIPTOR_COLUMNS),):
        raise ValueError(f"{len(cgroups)} groups, but other columns")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(cgroups)):
        raise ValueError("a row does not exist")
    counts = counts.reshape(len(cgroups), len(DESCRIPTOR_COLUMNS))
    end = time.monotonic_ns() + nanoseconds
    for done, row in enumerate(rows.tolist()):
        if done and time.monotonic_ns() >= end:
            return done
        cgroup = cgroups[row]
        counts[row] = ABSENT if cgroup is None else _counted(Path(proc), Path(top, os.fsdecode(cgroup)))
    return len(rows)


def _counted(proc: Path, group: Path) -> tuple[int, int, int]:
    listed = _read(group / "cgroup.procs")
    if listed is None:
        return ABSENT, ABSENT, ABSENT
    descriptors = sockets = 0
    limit: int | None = None
    # The last line of a list that is cut off holds a part of a number; a whole list ends with a newline.
    for line in listed.split(b"\n")[:-1]:
        if not (line.isdigit() and len(line) < 10 and 0 < int(line) <= _LARGEST_PID):
            continue
        process = proc / str(int(line))
        if limit is None:
            limit = _open_files_limit(_read(process / "limits") or b"")
        try:
            names = os.listdir(process / "fd")  # noqa: PTH208 - names are enough
        except OSError:
            continue
        for name in names:
            if descriptors == MOST_DESCRIPTORS:
                break
            descriptors += 1
            sockets += _leads_to_socket(process / "fd" / name)
    return descriptors, sockets, ABSENT if limit is None else limit


def _leads_to_socket(descriptor: Path) -> bool:
    try:
        return os.readlink(descriptor).startswith("socket:")  # noqa: PTH115 - no path, but `socket:[1]`
    except OSError:
        return False


def _open_files_limit(limits: bytes) -> int:
    """Parse `Max open files            1024                 524288               files`."""
    for line in limits.split(b"\n"):
        if line.startswith(_LIMIT):
            soft = line.removeprefix(_LIMIT).strip(b" ").partition(b" ")[0]
            if soft == b"unlimited":
                return -1
            return int(soft) if soft.isdigit() and len(soft) < 19 else ABSENT
    return ABSENT


def _read(path: Path) -> bytes | None:
    """Return the first 64 KiB, which the kernel gives out a page at a time; None if it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    text = b""
    try:
        while len(text) < _MOST and (piece := os.read(descriptor, _MOST - len(text))):
            text += piece
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return text
