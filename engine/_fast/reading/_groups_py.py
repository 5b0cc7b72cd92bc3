"""What many cgroups say, as numbers: v1 or v2. What the kernel has not got is `ABSENT`.

Files: the kernel's documents cgroup-v1/{cpuacct,memory,blkio,pids} and cgroup-v2. Times are nanoseconds,
amounts bytes; a file's first 64 KiB count, of cgroup.procs all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ABSENT: Final = -(1 << 63)
COLUMNS: Final = (
    "cpu",
    "cpu_user",
    "cpu_system",
    "periods",
    "throttled_periods",
    "throttled",
    "shares",
    "quota",
    "period",
    "memory",
    "memory_limit",
    "memory_peak",
    "memory_failures",
    "swap_limit",
    "inactive_file",
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
)
PRESSURE: Final = tuple((name, kind) for name in ("cpu", "memory", "io") for kind in ("some", "full"))
"""After the columns, four for each: microseconds in all, and the averages in hundredths of a percent."""

_WIDTH: Final = len(COLUMNS) + 4 * len(PRESSURE)
_TICK: Final = 10**9 // os.sysconf("SC_CLK_TCK")
_NO_LIMIT: Final = 1 << 62
_MOST: Final = 1 << 16
_MOST_READS: Final = 64
_LARGEST: Final = (1 << 63) - 1
_DIGITS: Final = 19

Row = dict[str, int | None]


class IoRow(NamedTuple):
    """What one group moved to and from one block device; `row` is the group's."""

    row: int
    major: int
    minor: int
    read_bytes: int
    written_bytes: int
    reads: int
    writes: int


def read_groups(
    mount: str, cgroups: Sequence[str], v1: bool
) -> tuple[NDArray[np.int64], list[tuple[int, ...]]]:
    """A row for each of `cgroups` (paths below `mount`, or below each controller's directory of it), and one
    `IoRow` for each group and device. A group that is gone has a row of `ABSENT`."""
    numbers = np.full((len(cgroups), _WIDTH), ABSENT, np.int64)
    moved: list[tuple[int, ...]] = []
    for row, cgroup in enumerate(cgroups):
        name = cgroup.strip("/")
        found, io = _v1(Path(mount), name) if v1 else _v2(Path(mount) / name)
        for column, field in enumerate(COLUMNS):
            value = found.get(field)
            if value is not None:
                numbers[row, column] = _held(value)
        if not v1:
            for at, (resource, kind) in enumerate(PRESSURE):
                stalled = _pressure(_read(Path(mount) / name / f"{resource}.pressure"), kind)
                if stalled is not None:
                    begin = len(COLUMNS) + 4 * at
                    numbers[row, begin : begin + 4] = stalled
        moved += [(row, *device, *counts) for device, counts in io.items()]
    return numbers, moved


def _v1(mount: Path, cgroup: str) -> tuple[Row, dict[tuple[int, int], list[int]]]:
    cpuacct, cpu, memory, pids, blkio = (
        mount / controller / cgroup for controller in ("cpuacct", "cpu", "memory", "pids", "blkio")
    )
    ticks, bandwidth = _flat(cpuacct / "cpuacct.stat"), _flat(cpu / "cpu.stat")
    stat = _flat(memory / "memory.stat")
    processes, first = _processes(memory / "cgroup.procs")
    found: Row = {
        "cpu": _number(cpuacct / "cpuacct.usage"),
        "cpu_user": _times(ticks.get("user"), _TICK),
        "cpu_system": _times(ticks.get("system"), _TICK),
        "periods": bandwidth.get("nr_periods"),
        "throttled_periods": bandwidth.get("nr_throttled"),
        "throttled": bandwidth.get("throttled_time"),
        "shares": _number(cpu / "cpu.shares"),
        "quota": _number(cpu / "cpu.cfs_quota_us"),
        "period": _number(cpu / "cpu.cfs_period_us"),
        "memory": _number(memory / "memory.usage_in_bytes"),
        "memory_limit": _number(memory / "memory.limit_in_bytes"),
        "memory_peak": _number(memory / "memory.max_usage_in_bytes"),
        "memory_failures": _number(memory / "memory.failcnt"),
        "swap_limit": _number(memory / "memory.memsw.limit_in_bytes"),
        "inactive_file": stat.get("total_inactive_file"),
        "rss": stat.get("total_rss"),
        "cache": stat.get("total_cache"),
        "mapped": stat.get("total_mapped_file"),
        "swap": stat.get("total_swap"),
        "faults": stat.get("total_pgfault"),
        "major_faults": stat.get("total_pgmajfault"),
        "oom_kills": _flat(memory / "memory.oom_control").get("oom_kill"),
        "threads": _number(pids / "pids.current"),
        "threads_limit": _number(pids / "pids.max"),
        "processes": processes,
        "first_process": first,
    }
    return found, _io_v1(blkio)


def _v2(group: Path) -> tuple[Row, dict[tuple[int, int], list[int]]]:
    cpu, stat, events = (_flat(group / name) for name in ("cpu.stat", "memory.stat", "memory.events"))
    quota, _, period = _read(group / "cpu.max").partition(" ")
    weight = _number(group / "cpu.weight")
    processes, first = _processes(group / "cgroup.procs")
    found: Row = {
        "cpu": _times(cpu.get("usage_usec"), 1000),
        "cpu_user": _times(cpu.get("user_usec"), 1000),
        "cpu_system": _times(cpu.get("system_usec"), 1000),
        "periods": cpu.get("nr_periods"),
        "throttled_periods": cpu.get("nr_throttled"),
        "throttled": _times(cpu.get("throttled_usec"), 1000),
        "shares": None if weight is None else 2 + (weight - 1) * 262142 // 9999,
        "quota": -1 if quota == "max" else _limit(quota),
        "period": _limit(period),
        "memory": _number(group / "memory.current"),
        "memory_limit": _number(group / "memory.max"),
        "memory_peak": _number(group / "memory.peak"),
        "memory_failures": events.get("max"),
        "swap_limit": _number(group / "memory.swap.max"),
        "inactive_file": stat.get("inactive_file"),
        "rss": stat.get("anon"),
        "cache": stat.get("file"),
        "mapped": stat.get("file_mapped"),
        "swap": _number(group / "memory.swap.current"),
        "faults": stat.get("pgfault"),
        "major_faults": stat.get("pgmajfault"),
        "oom_kills": events.get("oom_kill"),
        "threads": _number(group / "pids.current"),
        "threads_limit": _number(group / "pids.max"),
        "processes": processes,
        "first_process": first,
    }
    return found, _io_v2(_read(group / "io.stat"))


def _pressure(text: str, kind: str) -> tuple[int, int, int, int] | None:
    """`some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and `full …`; None unless all four are there."""
    for line in text.split("\n"):
        first, *pairs = line.split(" ")
        if first != kind:
            continue
        values = _pairs(pairs)
        total = _integer(values.get("total", ""))
        averages = [_hundredths(values.get(name, "")) for name in ("avg10", "avg60", "avg300")]
        if total is None or None in averages:
            return None
        ten, sixty, three_hundred = (average or 0 for average in averages)
        return total, ten, sixty, three_hundred
    return None


def _io_v1(blkio: Path) -> dict[tuple[int, int], list[int]]:
    """`8:0 Read 10` lines."""
    moved: dict[tuple[int, int], list[int]] = {}
    for offset, file in ((0, "blkio.throttle.io_service_bytes"), (2, "blkio.throttle.io_serviced")):
        text = _read(blkio / f"{file}_recursive") or _read(blkio / file)
        for line in text.split("\n"):
            words = line.split(" ")
            if len(words) != 3 or words[1] not in ("Read", "Write"):
                continue
            device, count = _device(words[0]), _integer(words[2])
            if device is not None and count is not None:
                moved.setdefault(device, [0, 0, 0, 0])[offset + (words[1] == "Write")] = count
    return moved


def _io_v2(text: str) -> dict[tuple[int, int], list[int]]:
    """`8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0`; a device without the four is left out."""
    moved = {}
    for line in text.split("\n"):
        name, *pairs = line.split(" ")
        values = _pairs(pairs)
        counts = [_integer(values.get(key, "")) for key in ("rbytes", "wbytes", "rios", "wios")]
        device = _device(name)
        if device is not None and None not in counts:
            moved[device] = [count or 0 for count in counts]
    return moved


def _pairs(words: Sequence[str]) -> Mapping[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _device(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(":")
    first, second = _integer(major), _integer(minor)
    return None if first is None or second is None else (first, second)


def _hundredths(text: str) -> int | None:
    """Two digits after the point, as the kernel has it."""
    whole, _, part = text.partition(".")
    first, second = _integer(whole), _integer(part)
    return None if first is None or second is None or len(part) != 2 else _held(_held(first * 100) + second)


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _flat(path: Path) -> dict[str, int]:
    """`NAME NUMBER` lines."""
    found = {}
    for line in _read(path).split("\n"):
        name, _, value = line.partition(" ")
        number = _integer(value)
        if number is not None:
            found[name] = number
    return found


def _number(path: Path) -> int | None:
    return _limit(_read(path))


def _limit(text: str) -> int | None:
    """None for what is not there and for no limit."""
    value = _integer(text.removesuffix("\n"))
    return None if value is None or value >= _NO_LIMIT else value


def _integer(text: str) -> int | None:
    """Digits, perhaps after a minus; what no 64 bits hold counts as the most that they do."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    held = _LARGEST if len(digits.lstrip("0")) > _DIGITS else _held(int(digits))
    return -held if text.startswith("-") else held


def _held(value: int) -> int:
    return max(min(value, _LARGEST), -_LARGEST)


def _processes(path: Path) -> tuple[int | None, int | None]:
    """How many, and the first."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None, None
    text = b""
    try:
        for _ in range(_MOST_READS):
            piece = os.read(descriptor, _MOST)
            if not piece:
                break
            text += piece
    except OSError:
        pass
    finally:
        os.close(descriptor)
    if not text:
        return None, None
    return text.count(b"\n"), _integer(text.partition(b"\n")[0].decode("ascii", "replace"))


def _read(path: Path) -> str:
    """ "" where there is nothing to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
