"""What is mounted where: this process's mount table as the kernel shows it. Source: proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOUNTINFO: Final = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mounted:
    """One mount. `options` are those of the mount and of its file system (`kind`) together."""

    point: str
    kind: str
    options: frozenset[str]


def mounted(mountinfo: str = MOUNTINFO) -> list[Mounted]:
    """All mounts, in the order in which they were made. Raises `OSError`."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
        return list(_read(lines))


def mounts_below(directory: Path) -> list[Path]:
    """Mount points at or below a directory, the latest first; one with two mounts on it is there twice."""
    top = str(directory.resolve())
    points = [mount.point for mount in mounted() if mount.point == top or mount.point.startswith(f"{top}/")]
    return [Path(point) for point in reversed(points)]


def _read(lines: Iterator[str]) -> Iterator[Mounted]:
    """Lines that are cut short, or of a form to come, are passed over."""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split()
        if len(fields) >= 6 and rest:
            own = rest[2].split(",") if len(rest) > 2 else []
            yield Mounted(_unescaped(fields[4]), rest[0], frozenset([*fields[5].split(","), *own]))


def _unescaped(text: str) -> str:
    """Blanks, tabs, newlines and backslashes stand as three octal digits there."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
