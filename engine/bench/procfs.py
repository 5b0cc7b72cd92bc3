"""Read the usage of a process tree from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
CPU_CLOCK_OF_PROCESS = 2
"""Nanoseconds, where /proc counts in hundredths of a second (clock_getcpuclockid(3))."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Hold CPU seconds (ended and waited-for children included), bytes resident and proportional,
    switches.
    """

    cpu: float
    rss: int
    pss: int
    switches: int
    processes: int


def tree(pid: int) -> Iterator[int]:
    """Return a process and its living descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            if task.name != str(pid):
                children += (task / "children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from tree(int(child))


def usage(pid: int) -> ProcessUsage:
    """Return the usage of a tree; processes that end meanwhile count nothing."""
    cpu, rss, pss, switches, processes = 0.0, 0, 0, 0, 0
    for each in tree(pid):
        try:
            stat = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            own = time.clock_gettime(~each << 3 | CPU_CLOCK_OF_PROCESS)
            rollup = _fields(Path(f"/proc/{each}/smaps_rollup"))
            switches += sum(
                value
                for task in Path(f"/proc/{each}/task").iterdir()
                for name, value in _fields(task / "status").items()
                if name.endswith("ctxt_switches")
            )
        except (OSError, IndexError):
            continue
        # The process's own clock has nanoseconds; children that it has waited for are counted in ticks only.
        cpu += own + sum(map(int, stat[13:15])) * TICK
        rss += rollup.get("Rss", 0) * 1024
        pss += rollup.get("Pss", 0) * 1024
        processes += 1
    return ProcessUsage(cpu, rss, pss, switches, processes)


def _fields(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}
