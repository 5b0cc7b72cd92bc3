"""Read the numbers of many cgroups, v1 or v2. A number that the kernel does not provide is `ABSENT`.

Files: the kernel's documents cgroup-v1/{cpuacct,memory,blkio,pids} and cgroup-v2. Times are nanoseconds,
amounts bytes; a file's first 64 KiB count, of cgroup.procs all.

A group rests if it has used no CPU time and holds as much memory as before, none of its data waits to be
written and its pressure has faded: nothing ran in it or in groups below it, so its other files are
unchanged. Settings made from outside (limits, weights) may still have changed, and the kernel may have aged
its pages: `due` selects the groups whose settings and memory.stat are read anyway.
"""

from __future__ import annotations

from typing import Final

from engine._fast.reading._groups_c import refresh_groups

__all__ = ["ABSENT", "COLUMNS", "IO_COLUMNS", "PRESSURE", "V1_CONTROLLERS", "refresh_groups"]

ABSENT: Final = -(1 << 63)
COLUMNS: Final = (
    "cpu",
    "cpu_user",
    "cpu_system",
    "periods",
    "throttled_periods",
    "throttled",
    "bursts",
    "burst",
    "shares",
    "quota",
    "period",
    "memory",
    "memory_limit",
    "memory_peak",
    "memory_failures",
    "swap_limit",
    "inactive_file",
    "active_file",
    "rss",
    "cache",
    "mapped",
    "swap",
    "faults",
    "major_faults",
    "oom_kills",
    "threads",
    "threads_limit",
    "processes",
    "first_process",
    "dirty",
    "writeback",
)
PRESSURE: Final = tuple((name, kind) for name in ("cpu", "memory", "io") for kind in ("some", "full"))
"""After the columns, four for each: total microseconds, and the averages in hundredths of a percent."""

V1_CONTROLLERS: Final = ("cpuacct", "cpu", "memory", "pids", "blkio")
"""The controllers of v1 whose files are read."""
IO_COLUMNS: Final = ("row", "major", "minor", "read_bytes", "written_bytes", "reads", "writes")
"""One group's transfers to and from one block device; `row` is the group's."""
