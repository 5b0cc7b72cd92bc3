"""Reads this process's mount table. Source: proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import msgspec

MOUNTINFO: Final = "/proc/self/mountinfo"
Device = tuple[int, int]
"""Major and minor number."""
_OUTSIDE: Final = -1
"""The parent of mounts whose parent this process does not see, above all of the root."""
_ESCAPED = re.compile(r"[ \t\n\\]")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mounted(msgspec.Struct, frozen=True):
    """Hold one mount; `options` are those of the mount and of its file system (`kind`), `device` is its
    `major:minor`.
    """

    point: str
    kind: str
    options: frozenset[str]
    device: str = ""


def mounted(mountinfo: str = MOUNTINFO) -> list[Mounted]:
    """Return all mounts in the order of mounting. Raises `OSError`."""
    return [mount for _, _, mount in _table(mountinfo)]


def reachable(kinds: Collection[str], mountinfo: str = MOUNTINFO) -> list[Mounted]:
    """Return the mounts of these kinds that their paths lead to, in the order of mounting. Raises `OSError`.

    A mount is hidden if another covers it, or a directory above it. Each candidate costs a check, so a
    node's thousands of other mounts are not checked.
    """
    table = _table(mountinfo)
    numbers = {number for number, _, _ in table}
    upon: Mapping[int, list[tuple[int, str]]] = defaultdict(list)
    for number, holder, mount in table:
        upon[holder if holder in numbers and holder != number else _OUTSIDE].append((number, mount.point))
    return [
        mount for number, _, mount in table if mount.kind in kinds and _met_last(mount.point, upon) == number
    ]


def block_devices(mountinfo: str = MOUNTINFO) -> dict[str, tuple[str, Device]]:
    """Return the first mount point and the number of each mounted block device, by its path. Raises
    `OSError`.
    """
    found: dict[str, tuple[str, Device]] = {}
    with _lines(mountinfo) as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            fields, rest = before.split(" "), after.split()
            if len(fields) < 6 or len(rest) < 2 or not rest[1].startswith("/dev/"):
                continue
            major, _, minor = fields[2].partition(":")
            if major.isdecimal() and minor.isdecimal():
                found.setdefault(_unescaped(rest[1]), (_unescaped(fields[4]), (int(major), int(minor))))
    return found


def mounts_below(directory: Path) -> list[Path]:
    """Return the mount points at or below a directory, latest first; one with two mounts appears twice.

    Lines that do not contain the directory are not parsed, because every removed pod searches the whole
    table.
    """
    top = str(directory.resolve())
    named = _escaped(top)
    with _lines(MOUNTINFO) as lines:
        found = [mount.point for _, _, mount in _read(line for line in lines if named in line)]
    points = [point for point in found if point == top or point.startswith(f"{top}/")]
    return [Path(point) for point in reversed(points)]


def is_mount_point(path: Path, mountinfo: str = MOUNTINFO) -> bool:
    """Tell whether something is mounted at a path, from the table of mounts alone: a file system whose server
    does not answer is not asked. Links in the path's last part are not followed. Raises `OSError`.
    """
    return device_at(path, mountinfo) is not None


def device_at(path: Path, mountinfo: str = MOUNTINFO) -> str | None:
    """Return `major:minor` of the file system that was mounted last at a path, None for none. Raises
    `OSError`.
    """
    point = str(path.parent.resolve() / path.name)
    named = f" {_escaped(point)} "
    with _lines(mountinfo) as lines:
        found = [
            mount.device
            for _, _, mount in _read(each for each in lines if named in each)
            if mount.point == point
        ]
    return found[-1] if found else None


def _table(mountinfo: str) -> list[tuple[int, int, Mounted]]:
    """Return each mount with its id and its parent's. Lines that are cut off, or of an unknown form, are
    ignored.
    """
    with _lines(mountinfo) as lines:
        return list(_read(lines))


def _lines(mountinfo: str) -> IO[str]:
    return open(mountinfo, encoding="utf-8", errors="surrogateescape")


def _read(lines: Iterable[str]) -> Iterator[tuple[int, int, Mounted]]:
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split()
        # Between the sixth field and the dash is a varying number of optional fields.
        if len(fields) >= 6 and rest and fields[0].isdecimal() and fields[1].isdecimal():
            own = rest[2].split(",") if len(rest) > 2 else []
            options = frozenset([*fields[5].split(","), *own])
            mount = Mounted(_unescaped(fields[4]), rest[0], options, fields[2])
            yield int(fields[0]), int(fields[1]), mount


def _met_last(path: str, upon: Mapping[int, list[tuple[int, str]]]) -> int:
    """Return the id of the mount at which a path ends."""
    number = _OUTSIDE
    while on_the_way := [(len(point), next_) for next_, point in upon[number] if covers(point, path)]:
        # The mount with the shortest path comes first on the way. A second mount on the same point has the
        # first one as its parent, so that it is met in the next turn.
        number = min(on_the_way)[1]
    return number


def covers(point: str, path: str) -> bool:
    """Return whether `path` is at or below a mount point."""
    return path == point or path.startswith(point.rstrip("/") + "/")


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"\\{ord(match[0]):03o}", text)


def _unescaped(text: str) -> str:
    """Decode blanks, tabs, newlines and backslashes from three octal digits."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
