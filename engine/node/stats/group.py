"""Reads many cgroups at once, v1 or v2, into rows of a table. What the kernel does not provide is None.

Times are nanoseconds, amounts bytes.
"""

from __future__ import annotations

import math
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

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

Transfers: TypeAlias = dict[int, list[tuple[int, ...]]]
"""By row, the `IO_COLUMNS` after it for each block device, in the order of the devices."""


class PressureStall(msgspec.Struct, frozen=True):
    """Hold PSI: `total` in microseconds, averages in percent."""

    total: int
    avg10: float
    avg60: float
    avg300: float


class GroupTable:
    """Hold one reading of all groups.

    `numbers` and `descriptors` are int64, one group after another: `WIDTH` and `DESCRIPTOR_COLUMNS` of each.
    `counted` tells whether the descriptors are those of this reading, not of an earlier one.
    `looked_at` is 1 for groups in which something ran since the last reading, and those whose turn it was.
    `io` has by row the `IO_COLUMNS` after it for each block device. `rates` are CPU nanoseconds per second,
    `ABSENT` without an earlier reading. `time` is a Unix time.
    """

    def __init__(
        self,
        time: float,
        numbers: array[int],
        looked_at: bytes,
        io: Transfers,
        rates: array[int],
        descriptors: array[int],
    ) -> None:
        self.time, self.numbers, self.looked_at = time, numbers, looked_at
        self.io, self.rates, self.descriptors = io, rates, descriptors
        self.counted = False

    def __len__(self) -> int:
        return len(self.looked_at)

    def column(self, name: str) -> memoryview[int]:
        """Return one number of each group, `ABSENT` where it has none."""
        return _column(self.numbers, WIDTH, _COLUMN[name])

    def opened(self, name: str) -> memoryview[int]:
        """Return one of `DESCRIPTOR_COLUMNS` of each group, `ABSENT` where it has none."""
        return _column(self.descriptors, len(DESCRIPTOR_COLUMNS), DESCRIPTOR_COLUMNS.index(name))

    def stalled(self, resource: str, kind: str) -> memoryview[int]:
        """Return the PSI total of each group in microseconds."""
        return _column(self.numbers, WIDTH, _STALLED[resource, kind])

    def averages(self, resource: str, kind: str) -> list[memoryview[int]]:
        """Return PSI total and the averages over 10, 60 and 300 s in hundredths of a percent."""
        begin = _STALLED[resource, kind]
        return [_column(self.numbers, WIDTH, at) for at in range(begin, begin + 4)]

    @cached_property
    def working_set(self) -> array[int]:
        """Return the memory in use minus the inactive page cache, in bytes."""
        return array(
            "q",
            [
                memory if memory == ABSENT else max(memory - (0 if idle == ABSENT else idle), 0)
                for memory, idle in zip(self.column("memory"), self.column("inactive_file"), strict=True)
            ],
        )

    def sample(self, row: int) -> GroupSample:
        return GroupSample(self, row)


class Groups:
    """Read a set of groups repeatedly; each keeps its row while it is in the set.

    A group is read again only if something ran in it; values set from outside, and memory that the kernel
    reclaims, are refreshed every `SETTINGS_SECONDS`. `borrowed` names, as (row, other, controller), rows
    whose v1 controller keeps its numbers in another row.
    """

    def __init__(self) -> None:
        self._names: list[bytes | None] = []
        self._parents = array("q")
        self._settings_read = array("d")
        self._free: dict[int, list[int]] = {}
        self._new: dict[int, int] = {}
        self.borrowed: list[tuple[int, int, str]] = []
        self._last: GroupTable | None = None
        self._read = array("q")
        self._descriptors = array("q")
        self._uncounted = bytearray()
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
            self._parents.extend([-1] * count)
        self._parents[first + 1 : first + count] = array("q", [first if within else -1]) * (count - 1)
        for row, cgroup in enumerate(cgroups, first):
            self._names[row] = cgroup.strip("/").encode()
            self._new[row] = (known or {}).get(cgroup, -1)
        return first

    def drop(self, first: int, count: int) -> None:
        """Drop rows that were added together."""
        self._names[first : first + count] = [None] * count
        self._new |= dict.fromkeys(range(first, first + count), -1)
        self._free.setdefault(count, []).append(first)

    def read(self, mounts: Mounts, time: float = 0.0) -> GroupTable:
        """Read everything that can be read now, except descriptors; a group that is gone has no numbers."""
        last, count = self._last, len(self._names)
        now_at = self._add_rows(count)
        numbers = self._read
        used = _column(numbers, WIDTH, _COLUMN["cpu"]).tolist()
        due = bytearray(not abs(time - at) < SETTINGS_SECONDS for at in self._settings_read)
        controllers = V1_CONTROLLERS if mounts.version == 1 else ("memory",)
        tops = [str(mounts.directory(each)) for each in controllers]
        moved, io = refresh_groups(tops, self._names, self._parents, due, numbers)
        self._note_uncounted(moved)
        self._set_read(due, time)
        transfers = _merged(last.io if last is not None else {}, now_at, moved, io)
        now = _column(numbers, WIDTH, _COLUMN["cpu"]).tolist()
        rates = _rates(used, now, time - last.time if last is not None else 0.0)
        # A copy, because callers keep their table while the next reading writes into `numbers`.
        shown = numbers[:]
        for row, other, controller in self.borrowed:
            columns = _OF_CONTROLLER[controller]
            shown[row * WIDTH + columns.start : row * WIDTH + columns.stop] = numbers[
                other * WIDTH + columns.start : other * WIDTH + columns.stop
            ]
            if controller == "cpuacct":
                rates[row] = rates[other]
        looked_at = bytes(map(int.__or__, due, moved))
        self._last = GroupTable(time, shown, looked_at, transfers, rates, self._descriptors[:])
        return self._last

    def count_descriptors(self, table: GroupTable, mounts: Mounts, proc: Path = PROC) -> None:
        """Count the descriptors of groups in which something ran, if `table` is the last reading.

        That takes as long as reading all else, because each descriptor of each process is a file. At most
        `MOST_COUNTED` groups are counted for a limited time; the others have their turn next.
        """
        if table is self._last and not table.counted:
            self._count_next(str(mounts.directory("memory")), proc)
            table.descriptors, table.counted = self._descriptors[:], True

    def _set_read(self, due: bytearray, time: float) -> None:
        """Note when the settings of the groups were read; those of new groups count as read earlier."""
        for row, is_due in enumerate(due):
            if is_due:
                early = 0.0 if math.isfinite(self._settings_read[row]) else row % SPREAD
                self._settings_read[row] = time - early * (SETTINGS_SECONDS / SPREAD)

    def _note_uncounted(self, moved: bytearray) -> None:
        """Note whose descriptors are to be counted: those of groups in which something ran."""
        width, uncounted = len(DESCRIPTOR_COLUMNS), self._uncounted
        for row, processes in enumerate(_column(self._read, WIDTH, _COLUMN["processes"])):
            if processes == ABSENT:
                self._descriptors[row * width : (row + 1) * width] = _absent(width)
                uncounted[row] = False
            elif moved[row]:
                uncounted[row] = True

    def _count_next(self, top: str, proc: Path) -> None:
        uncounted = self._uncounted
        waiting = [row for row, is_uncounted in enumerate(uncounted) if is_uncounted]
        turn = bisect_left(waiting, self._counted_up_to)
        rows = array("q", [*waiting[turn:], *waiting[:turn]][:MOST_COUNTED])
        done = count_descriptors(str(proc), top, self._names, rows, self._descriptors, COUNTING_NANOSECONDS)
        for row in rows[:done]:
            uncounted[row] = False
        self._counted_up_to = rows[done - 1] + 1 if done else 0

    def _add_rows(self, count: int) -> Mapping[int, int]:
        """Create the rows of new groups; return the new position of rows of the last reading whose position
        has changed, -1 for those that are gone.
        """
        width = len(DESCRIPTOR_COLUMNS)
        further = count - len(self._uncounted)
        if further:
            # A longer copy instead of `extend`: an array that a memoryview shows cannot grow.
            self._read = self._read + _absent(further * WIDTH)
            self._descriptors = self._descriptors + _absent(further * width)
            self._settings_read.extend([-math.inf] * further)
            self._uncounted.extend(b"\1" * further)
        carried = [
            (
                row,
                known,
                self._read[known * WIDTH : (known + 1) * WIDTH],
                self._descriptors[known * width : (known + 1) * width],
            )
            for row, known in self._new.items()
            if known >= 0
        ]
        for row in self._new:
            self._read[row * WIDTH : (row + 1) * WIDTH] = _absent(WIDTH)
            self._descriptors[row * width : (row + 1) * width] = _absent(width)
            self._settings_read[row], self._uncounted[row] = -math.inf, True
        now_at = dict.fromkeys(self._new, -1)
        for row, known, numbers, descriptors in carried:
            self._read[row * WIDTH : (row + 1) * WIDTH] = numbers
            self._descriptors[row * width : (row + 1) * width] = descriptors
            now_at[known] = row
        self._new.clear()
        return now_at


def _absent(count: int) -> array[int]:
    return array("q", [ABSENT]) * count


def _column(numbers: array[int], width: int, at: int) -> memoryview[int]:
    """View one column of a table with rows of `width`."""
    return memoryview(numbers)[at::width]


def _merged(
    before: Transfers, now_at: Mapping[int, int], moved: bytearray, io: Sequence[tuple[int, ...]]
) -> Transfers:
    """Merge the numbers read now with the earlier ones of idle groups."""
    merged: dict[int, list[tuple[int, ...]]] = {}
    for row, transfers in before.items():
        now = now_at.get(row, row)
        if now >= 0 and not moved[now]:
            merged[now] = transfers
    for row, *transferred in sorted(io):
        merged.setdefault(row, []).append(tuple(transferred))
    return dict(sorted(merged.items()))


def _rates(used: Sequence[int], now: Sequence[int], seconds: float) -> array[int]:
    """Return nanoseconds of CPU per second since the last reading."""
    if not SHORTEST_RATE <= seconds <= LONGEST_RATE:
        return _absent(len(now))
    return array(
        "q",
        [
            ABSENT
            if ABSENT in (first, last) or last < first
            else int(min((last - first) / seconds, _FASTEST))
            for first, last in zip(used, now, strict=True)
        ],
    )


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
        self.numbers: list[int] = table.numbers[row * WIDTH : (row + 1) * WIDTH].tolist()

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


def _known(value: int) -> int | None:
    return None if value == ABSENT else value


def children(cgroup: str, mounts: Mounts) -> Iterable[str]:
    """Return the names of the child groups."""
    try:
        with os.scandir(mounts.directory("memory", cgroup)) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
