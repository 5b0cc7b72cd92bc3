"""What cgroups say, v1 or v2: many are read at once, and each is a row. What the kernel has not got is None.

Times are nanoseconds, amounts bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine._fast.reading.groups import ABSENT, COLUMNS, PRESSURE, IoRow, refresh_groups

MOUNT: Final = Path("/sys/fs/cgroup")
WIDTH: Final = len(COLUMNS) + 4 * len(PRESSURE)
WHOLE_SECONDS: Final = 300.0
SPREAD: Final = 10
"""Groups that were met at the same time are not all due again at the same time."""
SHORTEST_RATE, LONGEST_RATE = 0.5, 600.0
_COLUMN: Final = {name: at for at, name in enumerate(COLUMNS)}
_STALLED: Final = {name: len(COLUMNS) + 4 * at for at, name in enumerate(PRESSURE)}


@dataclass(frozen=True, slots=True)
class Pressure:
    """PSI: `total` in microseconds, averages in percent."""

    total: int
    avg10: float
    avg60: float
    avg300: float


class GroupTable:
    """Groups by row: add all, then read them at once. Before that there is nothing in them.

    What is known of them from the table of the reading before is looked at again only where something ran, or
    every `WHOLE_SECONDS`; `time` is Unix seconds.
    """

    def __init__(self, before: GroupTable | None = None, time: float = 0.0) -> None:
        self.cgroups: list[str] = []
        self.io: list[IoRow] = []
        self.rates: list[int | None] = []
        self._time = time
        self._before = before
        self._parents: list[int] = []
        self._row: dict[str, int] = {}
        self._numbers: NDArray[np.int64] = np.empty((0, WIDTH), np.int64)
        self._read_whole: NDArray[np.float64] = np.empty(0, np.float64)

    def add(self, cgroup: str, within: GroupSample | None = None) -> GroupSample:
        """`within`: the group that it is in, if that is here too."""
        row = len(self.cgroups)
        self.cgroups.append(cgroup)
        self._parents.append(-1 if within is None else within.row)
        self._row[cgroup] = row
        return GroupSample(self, row)

    def read(self, mount: Path = MOUNT) -> None:
        """All that can be read; a group that is gone has nothing."""
        count = len(self.cgroups)
        self._numbers = np.full((count, WIDTH), ABSENT, np.int64)
        self._read_whole = np.full(count, -np.inf)
        before, self._before = self._before, None
        came_from = np.full(count, -1, np.intp)
        if before is not None:
            came_from[:] = [before._row.get(cgroup, -1) for cgroup in self.cgroups]
            known = came_from >= 0
            self._numbers[known] = before._numbers[came_from[known]]
            self._read_whole[known] = before._read_whole[came_from[known]]
        due = ~(np.abs(self._time - self._read_whole) < WHOLE_SECONDS)
        used = self._numbers[:, _COLUMN["cpu"]].copy()
        names = [cgroup.strip("/").encode() for cgroup in self.cgroups]
        parents = np.array(self._parents, np.int64)
        moved, io = refresh_groups(
            str(mount), names, parents, due.astype(np.uint8), self._numbers, is_v1(mount)
        )
        spread = (np.arange(count) % SPREAD) * (WHOLE_SECONDS / SPREAD)
        self._read_whole[due] = self._time - np.where(np.isfinite(self._read_whole[due]), 0.0, spread[due])
        self.io = self._merged(before, came_from, moved, [IoRow(*row) for row in io])
        self.rates = self._rates(before, used)

    def _merged(
        self,
        before: GroupTable | None,
        came_from: NDArray[np.intp],
        moved: NDArray[np.uint8],
        io: list[IoRow],
    ) -> list[IoRow]:
        """What was read now, and of groups that rest what was read before."""
        if before is None:
            return io
        now_at = {int(came_from[row]): int(row) for row in np.flatnonzero(moved == 0)}
        kept = [row._replace(row=now_at[row.row]) for row in before.io if row.row in now_at]
        return sorted([*io, *kept])

    def _rates(self, before: GroupTable | None, used: NDArray[np.int64]) -> list[int | None]:
        """Nanoseconds of CPU per second since the reading before."""
        seconds = self._time - before._time if before is not None else 0.0
        if not SHORTEST_RATE <= seconds <= LONGEST_RATE:
            return [None] * len(self.cgroups)
        now = self.column("cpu")
        known = (used != ABSENT) & (now != ABSENT) & (now >= used)
        rates = ((now - used) / seconds).astype(np.int64).tolist()
        return [rate if there else None for rate, there in zip(rates, known.tolist(), strict=True)]

    def column(self, name: str) -> NDArray[np.int64]:
        """A number of each group, `ABSENT` where it has none."""
        return self._numbers[:, _COLUMN[name]]

    def stalled(self, resource: str, kind: str) -> NDArray[np.int64]:
        """PSI's microseconds of each group."""
        return self._numbers[:, _STALLED[resource, kind]]

    @cached_property
    def rows(self) -> list[list[int]]:
        """The same numbers, for who looks at one group after another."""
        rows: list[list[int]] = self._numbers.tolist()
        return rows


class _Column:
    def __init__(self, name: str) -> None:
        self._at = _COLUMN[name]

    def __get__(self, sample: GroupSample, owner: type[GroupSample]) -> int | None:
        value = sample.numbers[self._at]
        return None if value == ABSENT else value


class GroupSample:
    """One group's numbers."""

    __slots__ = ("row", "table")

    def __init__(self, table: GroupTable, row: int) -> None:
        self.table, self.row = table, row

    cpu = _Column("cpu")
    cpu_user = _Column("cpu_user")
    cpu_system = _Column("cpu_system")
    periods = _Column("periods")
    throttled_periods = _Column("throttled_periods")
    throttled = _Column("throttled")
    shares = _Column("shares")
    quota = _Column("quota")
    period = _Column("period")
    memory = _Column("memory")
    memory_limit = _Column("memory_limit")
    memory_peak = _Column("memory_peak")
    memory_failures = _Column("memory_failures")
    swap_limit = _Column("swap_limit")
    inactive_file = _Column("inactive_file")
    rss = _Column("rss")
    cache = _Column("cache")
    mapped = _Column("mapped")
    swap = _Column("swap")
    faults = _Column("faults")
    major_faults = _Column("major_faults")
    oom_kills = _Column("oom_kills")
    threads = _Column("threads")
    threads_limit = _Column("threads_limit")
    processes = _Column("processes")
    first_process = _Column("first_process")
    dirty = _Column("dirty")
    writeback = _Column("writeback")

    @property
    def rate(self) -> int | None:
        """Nanoseconds of CPU per second since it was read before."""
        return self.table.rates[self.row]

    @property
    def numbers(self) -> list[int]:
        """By `COLUMNS`, `ABSENT` where there is none; pressure follows."""
        return self.table.rows[self.row]

    @property
    def working_set(self) -> int | None:
        """Bytes in use less the page cache that nobody touched lately."""
        memory = self.memory
        return None if memory is None else max(memory - (self.inactive_file or 0), 0)

    @property
    def has_pressure(self) -> bool:
        numbers = self.numbers
        return any(numbers[at] != ABSENT for at in _STALLED.values())

    def pressure(self, resource: str, kind: str) -> Pressure | None:
        """Of `cpu`, `memory` or `io`; `some` or `full`."""
        begin, row = _STALLED[resource, kind], self.numbers
        if row[begin] == ABSENT:
            return None
        return Pressure(row[begin], *(average / 100 for average in row[begin + 1 : begin + 4]))


def is_v1(mount: Path = MOUNT) -> bool:
    return (mount / "memory").is_dir()


def directory_of(cgroup: str, mount: Path = MOUNT) -> Path:
    """Where its memory is accounted."""
    return (mount / "memory" if is_v1(mount) else mount) / cgroup.strip("/")


def children(cgroup: str, mount: Path = MOUNT) -> Iterable[str]:
    """Names of the groups right below it."""
    try:
        with os.scandir(directory_of(cgroup, mount)) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
