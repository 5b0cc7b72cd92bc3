"""Reads many cgroups at once, v1 or v2, into rows of a table. What the kernel does not provide is None.

Times are nanoseconds, amounts bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.reading.descriptors import DESCRIPTOR_COLUMNS, count_descriptors
from engine._fast.reading.groups import ABSENT, COLUMNS, PRESSURE, V1_CONTROLLERS, refresh_groups
from engine.host.cgroupfs.mounts import Mounts

PROC: Final = Path("/proc")
WIDTH: Final = len(COLUMNS) + 4 * len(PRESSURE)
SETTINGS_SECONDS: Final = 600.0
SPREAD: Final = 100
"""Spread, in readings, of the times at which groups that appeared together are read again."""
MOST_COUNTED: Final = 256
"""Groups whose descriptors are counted in one reading; the others keep theirs until it is their turn."""
COUNTING_NANOSECONDS: Final = 50_000_000
SHORTEST_RATE, LONGEST_RATE = 0.5, 600.0
_FASTEST: Final = 2.0**62
_COLUMN: Final = {name: at for at, name in enumerate(COLUMNS)}
_OF_CONTROLLER: Final = {
    "cpuacct": slice(_COLUMN["cpu"], _COLUMN["periods"]),
    "cpu": slice(_COLUMN["periods"], _COLUMN["memory"]),
    "pids": slice(_COLUMN["threads"], _COLUMN["processes"]),
}
"""Columns of v1 controllers whose directory may differ from that of the memory controller."""
_STALLED: Final = {name: len(COLUMNS) + 4 * at for at, name in enumerate(PRESSURE)}


class PressureStall(msgspec.Struct, frozen=True):
    """Hold PSI: `total` in microseconds, averages in percent."""

    total: int
    avg10: float
    avg60: float
    avg300: float


class GroupTable:
    """Hold one reading of all groups.

    `numbers` has a row for each group, `io` rows of `IO_COLUMNS`. `looked_at` are the groups in which
    something ran since the last reading, and those whose turn it was. `rates` are nanoseconds of CPU per
    second, `ABSENT` without an earlier reading. `descriptors` has `DESCRIPTOR_COLUMNS` for each group.
    `time` is a Unix time.
    """

    def __init__(
        self,
        time: float,
        numbers: NDArray[np.int64],
        looked_at: NDArray[np.bool_],
        io: NDArray[np.int64],
        rates: NDArray[np.int64],
        descriptors: NDArray[np.int64],
    ) -> None:
        self.time, self.numbers, self.looked_at = time, numbers, looked_at
        self.io, self.rates, self._descriptors = io, rates, descriptors

    def column(self, name: str) -> NDArray[np.int64]:
        """Return one number of each group, `ABSENT` where it has none."""
        return self.numbers[:, _COLUMN[name]]

    def opened(self, name: str) -> NDArray[np.int64]:
        """Return one of `DESCRIPTOR_COLUMNS` of each group, `ABSENT` where it has none."""
        return self._descriptors[:, DESCRIPTOR_COLUMNS.index(name)]

    def stalled(self, resource: str, kind: str) -> NDArray[np.int64]:
        """Return the PSI total of each group in microseconds."""
        return self.numbers[:, _STALLED[resource, kind]]

    def averages(self, resource: str, kind: str) -> list[NDArray[np.int64]]:
        """Return PSI total and the averages over 10, 60 and 300 s in hundredths of a percent."""
        begin = _STALLED[resource, kind]
        return [self.numbers[:, at] for at in range(begin, begin + 4)]

    @cached_property
    def working_set(self) -> NDArray[np.int64]:
        """Return the memory in use minus the inactive page cache, in bytes."""
        memory, idle = self.column("memory"), self.column("inactive_file")
        left = np.maximum(memory - np.where(idle == ABSENT, 0, idle), 0)
        return np.where(memory == ABSENT, ABSENT, left)

    def sample(self, row: int) -> GroupSample:
        return GroupSample(self, row)


class Groups:
    """Read a set of groups repeatedly; each keeps its row while it is in the set.

    A group is read again only if something ran in it; values set from outside, and memory that the kernel
    reclaims, are refreshed every `SETTINGS_SECONDS`. The descriptors of its processes are counted again then
    too, but only of `MOST_COUNTED` groups per reading, in turn. `borrowed` names, as (row, other,
    controller), rows whose v1 controller keeps its numbers in another row.
    """

    def __init__(self) -> None:
        self._names: list[bytes | None] = []
        self._parents: list[int] = []
        self._settings_read: NDArray[np.float64] = np.empty(0)
        self._free: dict[int, list[int]] = {}
        self._new: dict[int, int] = {}
        self.borrowed: list[tuple[int, int, str]] = []
        self._last: GroupTable | None = None
        self._read: NDArray[np.int64] = np.empty((0, WIDTH), np.int64)
        self._descriptors: NDArray[np.int64] = np.empty((0, len(DESCRIPTOR_COLUMNS)), np.int64)
        self._uncounted: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._counted_up_to = 0

    def add(self, cgroups: Sequence[str], known: Mapping[str, int] | None = None, within: bool = True) -> int:
        """Add consecutive rows and return the first.

        The others are groups within the first, or with `within` false, anywhere. `known` are rows that the
        groups had before: their numbers continue.
        """
        count = len(cgroups)
        free = self._free.get(count)
        first = free.pop() if free else len(self._names)
        if first == len(self._names):
            self._names += [None] * count
            self._parents += [-1] * count
        self._parents[first + 1 : first + count] = [first if within else -1] * (count - 1)
        for row, cgroup in enumerate(cgroups, first):
            self._names[row] = cgroup.strip("/").encode()
            self._new[row] = (known or {}).get(cgroup, -1)
        return first

    def drop(self, first: int, count: int) -> None:
        """Drop rows that were added together."""
        self._names[first : first + count] = [None] * count
        self._new |= dict.fromkeys(range(first, first + count), -1)
        self._free.setdefault(count, []).append(first)

    def read(self, mounts: Mounts, time: float = 0.0, proc: Path = PROC) -> GroupTable:
        """Read everything that can be read now; a group that is gone has no numbers."""
        last, count = self._last, len(self._names)
        now_at = self._take_in(count)
        numbers = self._read
        used = numbers[:, _COLUMN["cpu"]].copy()
        due = ~(np.abs(time - self._settings_read) < SETTINGS_SECONDS)
        parents = np.array(self._parents, np.int64)
        controllers = V1_CONTROLLERS if mounts.version == 1 else ("memory",)
        tops = [str(mounts.directory(each)) for each in controllers]
        moved, io = refresh_groups(tops, self._names, parents, due.astype(np.uint8), numbers)
        self._count_descriptors(str(mounts.directory("memory")), proc, moved > 0)
        spread = (np.arange(count) % SPREAD) * (SETTINGS_SECONDS / SPREAD)
        self._settings_read[due] = time - np.where(np.isfinite(self._settings_read[due]), 0.0, spread[due])
        if last is not None:
            io = _merged(last.io, now_at, moved, io)
        rates = _rates(used, numbers[:, _COLUMN["cpu"]], time - last.time if last is not None else 0.0)
        shown = numbers.copy()
        for row, other, controller in self.borrowed:
            columns = _OF_CONTROLLER[controller]
            shown[row, columns] = numbers[other, columns]
            if controller == "cpuacct":
                rates[row] = rates[other]
        self._last = GroupTable(time, shown, due | (moved > 0), io, rates, self._descriptors.copy())
        return self._last

    def _count_descriptors(self, top: str, proc: Path, moved: NDArray[np.bool_]) -> None:
        """Count those of groups in which something ran, for a limited time; the rest has its turn next."""
        self._uncounted |= moved
        without = self._read[:, _COLUMN["processes"]] == ABSENT
        self._descriptors[without] = ABSENT
        self._uncounted[without] = False
        rows = np.flatnonzero(self._uncounted)
        rows = np.roll(rows, -int(np.searchsorted(rows, self._counted_up_to)))[:MOST_COUNTED]
        done = count_descriptors(str(proc), top, self._names, rows, self._descriptors, COUNTING_NANOSECONDS)
        self._uncounted[rows[:done]] = False
        self._counted_up_to = int(rows[done - 1]) + 1 if done else 0

    def _take_in(self, count: int) -> NDArray[np.intp]:
        """Create the rows of new groups; return the new position of each row of the last reading, -1 if it is
        gone.
        """
        before, looked_at = self._read, self._settings_read
        opened, uncounted = self._descriptors, self._uncounted
        if not self._new and len(before) == count:
            return np.arange(count)
        self._read = np.full((count, WIDTH), ABSENT, np.int64)
        self._read[: len(before)] = before
        self._settings_read = np.full(count, -np.inf)
        self._settings_read[: len(looked_at)] = looked_at
        self._descriptors = np.full((count, len(DESCRIPTOR_COLUMNS)), ABSENT, np.int64)
        self._descriptors[: len(before)] = opened
        self._uncounted = np.ones(count, np.bool_)
        self._uncounted[: len(before)] = uncounted
        now_at = np.arange(len(before))
        if self._new:
            rows, known = np.array(list(self._new.items()), np.intp).T
            carried = known >= 0
            now_at[rows[rows < len(before)]] = -1
            now_at[known[carried]] = rows[carried]
            self._read[rows] = ABSENT
            self._settings_read[rows] = -np.inf
            self._read[rows[carried]] = before[known[carried]]
            self._descriptors[rows], self._uncounted[rows] = ABSENT, True
            self._descriptors[rows[carried]] = opened[known[carried]]
            self._new.clear()
        return now_at


def _merged(
    before: NDArray[np.int64], now_at: NDArray[np.intp], moved: NDArray[np.uint8], io: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Merge the numbers read now with the earlier ones of idle groups."""
    rows = now_at[before[:, 0]]
    resting = (rows >= 0) & (moved[rows] == 0)
    if not len(io) and resting.all() and (rows == before[:, 0]).all():
        return before
    kept = before[resting]
    kept[:, 0] = rows[resting]
    whole = np.concatenate((kept, io))
    return whole[np.lexsort((whole[:, 2], whole[:, 1], whole[:, 0]))]


def _rates(used: NDArray[np.int64], now: NDArray[np.int64], seconds: float) -> NDArray[np.int64]:
    """Return nanoseconds of CPU per second since the last reading."""
    if not SHORTEST_RATE <= seconds <= LONGEST_RATE:
        return np.full(len(now), ABSENT, np.int64)
    known = (used != ABSENT) & (now != ABSENT) & (now >= used)
    rates = np.where(known, now - used, 0) / seconds
    return np.where(known, np.minimum(rates, _FASTEST).astype(np.int64), ABSENT)


class _Column:
    def __init__(self, name: str) -> None:
        self._at = _COLUMN[name]

    def __get__(self, sample: GroupSample, owner: type[GroupSample]) -> int | None:
        value = sample.numbers[self._at]
        return None if value == ABSENT else value


class GroupSample:
    """Hold the numbers of one group: `numbers` by `COLUMNS`, `ABSENT` if there is none, followed by
    pressure.
    """

    __slots__ = ("numbers", "row", "table")

    def __init__(self, table: GroupTable, row: int) -> None:
        self.table, self.row = table, row
        self.numbers: list[int] = table.numbers[row].tolist()

    cpu = _Column("cpu")
    cpu_user = _Column("cpu_user")
    cpu_system = _Column("cpu_system")
    periods = _Column("periods")
    throttled_periods = _Column("throttled_periods")
    throttled = _Column("throttled")
    bursts = _Column("bursts")
    burst = _Column("burst")
    shares = _Column("shares")
    quota = _Column("quota")
    period = _Column("period")
    memory = _Column("memory")
    memory_limit = _Column("memory_limit")
    memory_peak = _Column("memory_peak")
    memory_failures = _Column("memory_failures")
    swap_limit = _Column("swap_limit")
    inactive_file = _Column("inactive_file")
    active_file = _Column("active_file")
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
        """Return nanoseconds of CPU per second since the last reading."""
        return _known(self.table.rates[self.row])

    @property
    def working_set(self) -> int | None:
        """Return the memory in use minus the inactive page cache, in bytes."""
        return _known(self.table.working_set[self.row])

    @property
    def has_pressure(self) -> bool:
        numbers = self.numbers
        return any(numbers[at] != ABSENT for at in _STALLED.values())

    def pressure(self, resource: str, kind: str) -> PressureStall | None:
        """Return the pressure of `cpu`, `memory` or `io`, `some` or `full`."""
        begin, row = _STALLED[resource, kind], self.numbers
        if row[begin] == ABSENT:
            return None
        return PressureStall(row[begin], *(average / 100 for average in row[begin + 1 : begin + 4]))


def _known(value: np.int64) -> int | None:
    return None if value == ABSENT else int(value)


def children(cgroup: str, mounts: Mounts) -> Iterable[str]:
    """Return the names of the child groups."""
    try:
        with os.scandir(mounts.directory("memory", cgroup)) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
