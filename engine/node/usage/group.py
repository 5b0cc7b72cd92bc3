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

from engine._fast.reading.groups import ABSENT, COLUMNS, PRESSURE, IoRow, read_groups

MOUNT: Final = Path("/sys/fs/cgroup")
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
    """Groups by row: add all, then read them at once. Before that there is nothing in them."""

    def __init__(self) -> None:
        self.cgroups: list[str] = []
        self.io: list[IoRow] = []
        self._numbers: NDArray[np.int64] = np.empty((0, len(COLUMNS)), np.int64)

    def add(self, cgroup: str) -> GroupSample:
        self.cgroups.append(cgroup)
        return GroupSample(self, len(self.cgroups) - 1)

    def read(self, mount: Path = MOUNT) -> None:
        """All that can be read; a group that is gone has nothing."""
        self._numbers, io = read_groups(str(mount), self.cgroups, is_v1(mount))
        self.io = [IoRow(*row) for row in io]

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
