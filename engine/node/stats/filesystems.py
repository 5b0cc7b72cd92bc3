"""Reads the size and use of the machine's file systems and the counters of its disks, as cAdvisor shows them.

Only filesystems on block devices: a kubelet's page has them in the root cgroup alone, as containerd's
containers have none of their own there. The table of mounts is long on a full node, so it is read seldom.
Files: proc(5) for mountinfo, the kernel's iostats document for diskstats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from engine.host.mountinfo import Device, block_devices

MOUNTS_SECONDS: Final = 600.0
MOST_FILESYSTEMS: Final = 128
DISK_COUNTS: Final = (
    *("reads", "reads_merged", "sectors_read", "read_milliseconds"),
    *("writes", "writes_merged", "sectors_written", "write_milliseconds"),
    *("in_progress", "io_milliseconds", "weighted_milliseconds"),
)
"""The counters of a device in /proc/diskstats, in its order."""


class Filesystem(msgspec.Struct, frozen=True):
    """Hold one file system: sizes in bytes; `disk` are `DISK_COUNTS`, empty if the kernel has none."""

    device: str
    limit: int
    usage: int
    inodes: int
    inodes_free: int
    disk: tuple[int, ...] = ()


def disk_counts(diskstats: str) -> dict[Device, tuple[int, ...]]:
    """Return `DISK_COUNTS` of each device; lines that are shorter or no numbers are left out."""
    found = {}
    for line in diskstats.splitlines():
        words = line.split()
        numbers = [*words[:2], *words[3 : 3 + len(DISK_COUNTS)]]
        if len(numbers) == 2 + len(DISK_COUNTS) and "".join(numbers).isdecimal():
            major, minor, *counts = map(int, numbers)
            found[major, minor] = tuple(counts)
    return found


class Filesystems:
    """Read the file systems of the machine; `proc` is where its tables are."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._mounts: Mapping[str, tuple[str, Device]] = {}
        self._read_at = -MOUNTS_SECONDS

    def read(self, now: float) -> list[Filesystem]:
        """Return what can be read now, by the path of the device; `now` is a Unix time."""
        if not 0 <= now - self._read_at < MOUNTS_SECONDS:
            self._mounts, self._read_at = self._block_devices(), now
        counts = disk_counts(_text(self._proc / "diskstats")) if self._mounts else {}
        found = []
        for device, (mount_point, number) in sorted(self._mounts.items())[:MOST_FILESYSTEMS]:
            try:
                has = os.statvfs(mount_point)
            except OSError:
                continue
            limit = has.f_blocks * has.f_frsize
            disk = counts.get(number) or counts.get(_number_of(device), ())
            usage = limit - has.f_bfree * has.f_frsize
            found.append(Filesystem(device, limit, usage, has.f_files, has.f_ffree, disk))
        return found

    def _block_devices(self) -> Mapping[str, tuple[str, Device]]:
        try:
            return block_devices(str(self._proc.joinpath("self", "mountinfo")))
        except OSError:
            return {}


def _number_of(device: str) -> Device:
    """Return the number of the device itself: btrfs mounts have one that is no device's."""
    try:
        number = Path(device).stat().st_rdev
    except OSError:
        return -1, -1
    return os.major(number), os.minor(number)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
