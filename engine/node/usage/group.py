"""One cgroup's numbers, v1 or v2. What the kernel has not got is None.

Files: the kernel's documents cgroup-v1/{cpuacct,memory,blkio,pids} and cgroup-v2. Times are nanoseconds,
amounts bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MOUNT: Final = Path("/sys/fs/cgroup")
_TICK: Final = 10**9 // os.sysconf("SC_CLK_TCK")
_NO_LIMIT: Final = 1 << 62
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Pressure:
    """PSI: `total` in microseconds, averages in percent."""

    total: int
    avg10: float
    avg60: float
    avg300: float


@dataclass(slots=True)
class GroupSample:
    """`io` are (major:minor, bytes read, bytes written, reads, writes); `pressure` by `cpu`, `memory`, `io`,
    each with `some` and `full`."""

    cpu: int | None = None
    cpu_user: int | None = None
    cpu_system: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled: int | None = None
    shares: int | None = None
    quota: int | None = None
    period: int | None = None
    memory: int | None = None
    memory_limit: int | None = None
    memory_peak: int | None = None
    memory_failures: int | None = None
    swap_limit: int | None = None
    inactive_file: int = 0
    rss: int | None = None
    cache: int | None = None
    mapped: int | None = None
    swap: int | None = None
    faults: int | None = None
    major_faults: int | None = None
    oom_kills: int | None = None
    threads: int | None = None
    threads_limit: int | None = None
    processes: int | None = None
    io: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    pressure: dict[str, dict[str, Pressure]] = field(default_factory=dict)

    @property
    def working_set(self) -> int | None:
        """Bytes in use less the page cache that nobody touched lately."""
        return None if self.memory is None else max(self.memory - self.inactive_file, 0)


def is_v1(mount: Path = MOUNT) -> bool:
    return (mount / "memory").is_dir()


def directory_of(cgroup: str, mount: Path = MOUNT) -> Path:
    """Where its memory is accounted."""
    return (mount / "memory" if is_v1(mount) else mount) / cgroup.strip("/")


def read_group(cgroup: str, mount: Path = MOUNT) -> GroupSample:
    """All that can be read; a group that is gone has nothing but None."""
    return _read_v1(cgroup.strip("/"), mount) if is_v1(mount) else _read_v2(mount / cgroup.strip("/"))


def first_process(cgroup: str, mount: Path = MOUNT) -> int | None:
    """A process in the group itself."""
    return next((int(word) for word in _read(directory_of(cgroup, mount) / "cgroup.procs").split()), None)


def _read_v1(cgroup: str, mount: Path) -> GroupSample:
    cpuacct, cpu, memory, pids, blkio = (
        mount / controller / cgroup for controller in ("cpuacct", "cpu", "memory", "pids", "blkio")
    )
    ticks, bandwidth = _flat(cpuacct / "cpuacct.stat"), _flat(cpu / "cpu.stat")
    stat = _flat(memory / "memory.stat")
    return GroupSample(
        cpu=_number(cpuacct / "cpuacct.usage"),
        cpu_user=_times(ticks.get("user"), _TICK),
        cpu_system=_times(ticks.get("system"), _TICK),
        periods=bandwidth.get("nr_periods"),
        throttled_periods=bandwidth.get("nr_throttled"),
        throttled=bandwidth.get("throttled_time"),
        shares=_number(cpu / "cpu.shares"),
        quota=_number(cpu / "cpu.cfs_quota_us"),
        period=_number(cpu / "cpu.cfs_period_us"),
        memory=_number(memory / "memory.usage_in_bytes"),
        memory_limit=_number(memory / "memory.limit_in_bytes"),
        memory_peak=_number(memory / "memory.max_usage_in_bytes"),
        memory_failures=_number(memory / "memory.failcnt"),
        swap_limit=_number(memory / "memory.memsw.limit_in_bytes"),
        inactive_file=stat.get("total_inactive_file", 0),
        rss=stat.get("total_rss"),
        cache=stat.get("total_cache"),
        mapped=stat.get("total_mapped_file"),
        swap=stat.get("total_swap"),
        faults=stat.get("total_pgfault"),
        major_faults=stat.get("total_pgmajfault"),
        oom_kills=_flat(memory / "memory.oom_control").get("oom_kill"),
        threads=_number(pids / "pids.current"),
        threads_limit=_number(pids / "pids.max"),
        processes=_lines(memory / "cgroup.procs"),
        io=_io_v1(blkio),
    )


def _read_v2(group: Path) -> GroupSample:
    cpu, stat, events = (
        _flat(group / "cpu.stat"),
        _flat(group / "memory.stat"),
        _flat(group / "memory.events"),
    )
    quota, _, period = _read(group / "cpu.max").partition(" ")
    weight = _number(group / "cpu.weight")
    return GroupSample(
        cpu=_times(cpu.get("usage_usec"), 1000),
        cpu_user=_times(cpu.get("user_usec"), 1000),
        cpu_system=_times(cpu.get("system_usec"), 1000),
        periods=cpu.get("nr_periods"),
        throttled_periods=cpu.get("nr_throttled"),
        throttled=_times(cpu.get("throttled_usec"), 1000),
        shares=None if weight is None else 2 + (weight - 1) * 262142 // 9999,
        quota=int(quota) if quota.isdigit() else -1,
        period=int(period) if period.strip().isdigit() else None,
        memory=_number(group / "memory.current"),
        memory_limit=_number(group / "memory.max"),
        memory_peak=_number(group / "memory.peak"),
        memory_failures=events.get("max"),
        swap_limit=_number(group / "memory.swap.max"),
        inactive_file=stat.get("inactive_file", 0),
        rss=stat.get("anon"),
        cache=stat.get("file"),
        mapped=stat.get("file_mapped"),
        swap=_number(group / "memory.swap.current"),
        faults=stat.get("pgfault"),
        major_faults=stat.get("pgmajfault"),
        oom_kills=events.get("oom_kill"),
        threads=_number(group / "pids.current"),
        threads_limit=_number(group / "pids.max"),
        processes=_lines(group / "cgroup.procs"),
        io=_io_v2(_read(group / "io.stat")),
        pressure={name: found for name in ("cpu", "memory", "io") if (found := _pressure(group, name))},
    )


def _pressure(group: Path, name: str) -> dict[str, Pressure]:
    """`some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and `full …`."""
    found = {}
    for line in _read(group / f"{name}.pressure").splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        with contextlib.suppress(KeyError, ValueError):
            found[kind] = Pressure(
                int(values["total"]), float(values["avg10"]), float(values["avg60"]), float(values["avg300"])
            )
    return found


def _io_v1(blkio: Path) -> list[tuple[str, int, int, int, int]]:
    moved: dict[str, list[int]] = {}
    for offset, file in ((0, "blkio.throttle.io_service_bytes"), (2, "blkio.throttle.io_serviced")):
        text = _read(blkio / f"{file}_recursive") or _read(blkio / file)
        for line in text.splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in ("Read", "Write"):
                row = moved.setdefault(words[0], [0, 0, 0, 0])
                row[offset + (words[1] == "Write")] += int(words[2])
    return [(device, *row) for device, row in moved.items()]  # type: ignore[misc]


def _io_v2(text: str) -> list[tuple[str, int, int, int, int]]:
    rows = []
    for line in text.splitlines():
        device, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        with contextlib.suppress(KeyError, ValueError):
            read, written = int(values["rbytes"]), int(values["wbytes"])
            rows.append((device, read, written, int(values["rios"]), int(values["wios"])))
    return rows


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _flat(path: Path) -> dict[str, int]:
    """`NAME NUMBER` lines."""
    found = {}
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if value.lstrip("-").isdigit():
            found[name] = int(value)
    return found


def _number(path: Path) -> int | None:
    """None for what is not there and for no limit."""
    text = _read(path).strip()
    if not text.lstrip("-").isdigit():
        return None
    value = int(text)
    return None if value >= _NO_LIMIT else value


def _lines(path: Path) -> int | None:
    text = _read(path)
    return text.count("\n") if text else None


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


def children(cgroup: str, mount: Path = MOUNT) -> Iterable[str]:
    """Names of the groups right below it."""
    try:
        with os.scandir(directory_of(cgroup, mount)) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
