"""Read the numbers of many cgroups in plain Python; tests compare the kernel with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine._fast.reading.groups import ABSENT, COLUMNS, PRESSURE, V1_CONTROLLERS

_WIDTH: Final = len(COLUMNS) + 4 * len(PRESSURE)
_TICK: Final = 10**9 // os.sysconf("SC_CLK_TCK")
_NO_LIMIT: Final = 1 << 62
_MOST: Final = 1 << 16
_MOST_READS: Final = 64
_LARGEST: Final = (1 << 63) - 1
_DIGITS: Final = 19

Row = dict[str, int | None]


def refresh_groups(
    tops: Sequence[str],
    cgroups: list[bytes | None],
    parents: NDArray[np.int64],
    due: NDArray[np.uint8],
    numbers: NDArray[np.int64],
) -> tuple[bytearray, list[tuple[int, ...]]]:
    """Do what `engine._fast.reading.groups.refresh_groups` does, group by group."""
    if not len(parents) == len(due) == len(cgroups) or numbers.shape != (len(cgroups) * _WIDTH,):
        raise ValueError(f"{len(cgroups)} groups, but columns of another length")
    if (parents >= np.arange(len(cgroups))).any():
        raise ValueError("a group comes before its parent")
    if len(tops) not in (1, len(V1_CONTROLLERS)):
        raise ValueError(f"{len(tops)} directories of controllers")
    numbers = numbers.reshape(len(cgroups), _WIDTH)
    moved = bytearray(b"\1" * len(cgroups))
    io: list[tuple[int, ...]] = []
    form = _V2 if len(tops) == 1 else _V1
    for row, cgroup in enumerate(cgroups):
        if cgroup is None:
            numbers[row] = ABSENT
            continue
        known = dict(zip(_ALL, numbers[row].tolist(), strict=True))
        whole = ABSENT in (known["cpu"], known["memory"])
        rests = not whole and parents[row] >= 0 and not moved[parents[row]]
        if rests and not due[row]:
            moved[row] = 0
            continue
        group = form([Path(top, os.fsdecode(cgroup)) for top in tops])
        pulse = known if rests else group.pulse()
        if whole:
            numbers[row] = ABSENT
            found = pulse | group.settings() | group.rest({})
        elif pulse["cpu"] is None or pulse["memory"] is None:
            numbers[row] = ABSENT
            continue
        else:
            found = {} if rests else pulse
            same = all(pulse[name] == known[name] for name in ("cpu", "memory"))
            rests = rests or (same and _settled(known))
            if due[row]:
                found |= group.settings()
                numbers[row, _SET] = ABSENT
                known |= {name: ABSENT if found[name] is None else found[name] for name in _SETTINGS}
            if not rests:
                found |= group.rest(known)
            elif due[row]:
                found |= group.memory_stat()
            moved[row] = not rests
        for column, name in enumerate(_ALL):
            value = found.get(name)
            if value is not None:
                numbers[row, column] = _held(value)
        if moved[row]:
            io += [(row, *device, *counts) for device, counts in group.io().items()]
    return moved, io


def _settled(known: Mapping[str, int]) -> bool:
    """Tell whether nothing of the group can change by itself."""
    return all(known[name] <= 0 for name in ("dirty", "writeback", *_AVERAGES))


class _V1:
    def __init__(self, directories: Sequence[Path]) -> None:
        self._cpuacct, self._cpu, self._memory, self._pids, self._blkio = directories

    def pulse(self) -> Row:
        return {
            "cpu": _number(self._cpuacct / "cpuacct.usage"),
            "memory": _number(self._memory / "memory.usage_in_bytes"),
        }

    def settings(self) -> Row:
        return {
            "shares": _number(self._cpu / "cpu.shares"),
            "quota": _number(self._cpu / "cpu.cfs_quota_us"),
            "period": _number(self._cpu / "cpu.cfs_period_us"),
            "memory_limit": _number(self._memory / "memory.limit_in_bytes"),
            "swap_limit": _number(self._memory / "memory.memsw.limit_in_bytes"),
            "threads_limit": _number(self._pids / "pids.max"),
        }

    def rest(self, known: Mapping[str, int]) -> Row:
        """Tell whether the group rests; `known` is what was read before, empty to read all. A count without a
        limit is not read.
        """
        ticks = _flat(self._cpuacct / "cpuacct.stat")
        found: Row = {
            **self.memory_stat(),
            "cpu_user": _times(ticks.get("user"), _TICK),
            "cpu_system": _times(ticks.get("system"), _TICK),
            "memory_peak": _number(self._memory / "memory.max_usage_in_bytes"),
            "oom_kills": _flat(self._memory / "memory.oom_control").get("oom_kill"),
            "threads": _number(self._pids / "pids.current"),
        }
        if not known or known["quota"] > 0:
            bandwidth = _flat(self._cpu / "cpu.stat")
            found |= {
                "periods": bandwidth.get("nr_periods"),
                "throttled_periods": bandwidth.get("nr_throttled"),
                "throttled": bandwidth.get("throttled_time"),
                "bursts": bandwidth.get("nr_bursts"),
                "burst": bandwidth.get("burst_time"),
            }
        if not known or known["memory_limit"] > 0:
            found["memory_failures"] = _number(self._memory / "memory.failcnt")
        return found | _processes_if_others(self._memory / "cgroup.procs", found["threads"], known)

    def memory_stat(self) -> Row:
        stat = _flat(self._memory / "memory.stat")
        return {
            "inactive_file": stat.get("total_inactive_file"),
            "active_file": stat.get("total_active_file"),
            "rss": stat.get("total_rss"),
            "cache": stat.get("total_cache"),
            "mapped": stat.get("total_mapped_file"),
            "swap": stat.get("total_swap"),
            "faults": stat.get("total_pgfault"),
            "major_faults": stat.get("total_pgmajfault"),
            "dirty": stat.get("total_dirty"),
            "writeback": stat.get("total_writeback"),
        }

    def io(self) -> dict[tuple[int, int], list[int]]:
        return _io_v1(self._blkio)


class _V2:
    def __init__(self, directories: Sequence[Path]) -> None:
        (self._group,) = directories

    def pulse(self) -> Row:
        cpu = _flat(self._group / "cpu.stat")
        return {
            "cpu": _times(cpu.get("usage_usec"), 1000),
            "cpu_user": _times(cpu.get("user_usec"), 1000),
            "cpu_system": _times(cpu.get("system_usec"), 1000),
            "periods": cpu.get("nr_periods"),
            "throttled_periods": cpu.get("nr_throttled"),
            "throttled": _times(cpu.get("throttled_usec"), 1000),
            "bursts": cpu.get("nr_bursts"),
            "burst": _times(cpu.get("burst_usec"), 1000),
            "memory": _number(self._group / "memory.current"),
        }

    def settings(self) -> Row:
        quota, _, period = _read(self._group / "cpu.max").partition(" ")
        weight = _number(self._group / "cpu.weight")
        return {
            "shares": None if weight is None else 2 + (weight - 1) * 262142 // 9999,
            "quota": -1 if quota == "max" else _limit(quota),
            "period": _limit(period),
            "memory_limit": _number(self._group / "memory.max"),
            "swap_limit": _number(self._group / "memory.swap.max"),
            "threads_limit": _number(self._group / "pids.max"),
        }

    def rest(self, known: Mapping[str, int]) -> Row:
        events = _flat(self._group / "memory.events")
        found: Row = {
            **self.memory_stat(),
            "memory_peak": _number(self._group / "memory.peak"),
            "memory_failures": events.get("max"),
            "swap": _number(self._group / "memory.swap.current"),
            "oom_kills": events.get("oom_kill"),
            "threads": _number(self._group / "pids.current"),
        }
        for resource, kind in PRESSURE:
            stalled = _pressure(_read(self._group / f"{resource}.pressure"), kind)
            if stalled is not None:
                found |= zip(_stalled_names(resource, kind), stalled, strict=True)
        return found | _processes_if_others(self._group / "cgroup.procs", found["threads"], known)

    def memory_stat(self) -> Row:
        stat = _flat(self._group / "memory.stat")
        return {
            "inactive_file": stat.get("inactive_file"),
            "active_file": stat.get("active_file"),
            "rss": stat.get("anon"),
            "cache": stat.get("file"),
            "mapped": stat.get("file_mapped"),
            "faults": stat.get("pgfault"),
            "major_faults": stat.get("pgmajfault"),
            "dirty": stat.get("file_dirty"),
            "writeback": stat.get("file_writeback"),
        }

    def io(self) -> dict[tuple[int, int], list[int]]:
        return _io_v2(_read(self._group / "io.stat"))


def _processes_if_others(path: Path, threads: int | None, known: Mapping[str, int]) -> Row:
    """Assume that an equal number of threads means the same processes."""
    now = known.get("threads", ABSENT) if threads is None else threads
    if known and now == known["threads"]:
        return {}
    processes, first = _processes(path)
    return {"processes": processes, "first_process": first}


def _stalled_names(resource: str, kind: str) -> list[str]:
    return [f"{resource}-{kind}-{what}" for what in ("total", "avg10", "avg60", "avg300")]


_ALL: Final = (*COLUMNS, *(name for each in PRESSURE for name in _stalled_names(*each)))
_SETTINGS: Final = ("shares", "quota", "period", "memory_limit", "swap_limit", "threads_limit")
_SET: Final = [COLUMNS.index(name) for name in _SETTINGS]
_AVERAGES: Final = tuple(name for name in _ALL if "-avg" in name)


def _pressure(text: str, kind: str) -> tuple[int, int, int, int] | None:
    """Parse `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and `full …`; None unless all four are there."""
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
    """Parse `8:0 Read 10` lines."""
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
    """Parse `8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0`; a device without the four is
    left out.
    """
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
    """Parse a number with two digits after the point, as the kernel writes it."""
    whole, _, part = text.partition(".")
    first, second = _integer(whole), _integer(part)
    return None if first is None or second is None or len(part) != 2 else _held(_held(first * 100) + second)


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _flat(path: Path) -> dict[str, int]:
    """Parse `NAME NUMBER` lines."""
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
    """Parse a limit; None for a missing file and for no limit."""
    value = _integer(text.removesuffix("\n"))
    return None if value is None or value >= _NO_LIMIT else value


def _integer(text: str) -> int | None:
    """Parse digits, optionally after a minus; clamp to 64 bits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    held = _LARGEST if len(digits.lstrip("0")) > _DIGITS else _held(int(digits))
    return -held if text.startswith("-") else held


def _held(value: int) -> int:
    return max(min(value, _LARGEST), -_LARGEST)


def _processes(path: Path) -> tuple[int | None, int | None]:
    """Return the number of processes, and the first."""
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
    """Return the text, "" if there is nothing to read."""
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
