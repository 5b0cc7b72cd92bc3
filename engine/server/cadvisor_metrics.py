"""Serves `/metrics/cadvisor` with cAdvisor's names and labels, as the usual rules and dashboards expect them.

Each cgroup has one set of labels, made once; a series is a name and a column of the table of cgroups. The
text is written while it is sent, because it is far larger than its inputs.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from engine._fast.reading.groups import IO_COLUMNS
from engine._fast.writing.exposition import (
    ABSENT,
    ColumnRows,
    Numbers,
    Series,
    Texts,
    Values,
    exposition,
    joined,
)
from engine.node.nodeinfo.machine import device_name, memory_total, swap
from engine.node.stats.filesystems import DISK_COUNTS, Filesystem
from engine.node.stats.group import GroupTable
from engine.node.stats.used import NodeUsage
from engine.server.group_labels import GroupLabels, LabelledGroups
from engine.server.metrics_text import MICRO, MILLI, NANO, head, labelled

Column = Callable[[GroupTable], tuple[Numbers, int]]
"""Values, and how many of their digits follow the decimal point."""


def _column(name: str, point: int = 0) -> Column:
    return lambda table: (table.column(name), point)


def _opened(name: str) -> Column:
    return lambda table: (table.opened(name), 0)


def _limit(name: str) -> Column:
    """Return a limit; 0 means unlimited."""

    def read(table: GroupTable) -> tuple[Numbers, int]:
        return array("q", [0 if value == ABSENT else value for value in table.column(name)]), 0

    return read


def _stalled(resource: str, kind: str) -> Column:
    return lambda table: (table.stalled(resource, kind), MICRO)


_SERIES: tuple[tuple[str, str, str, str, Column], ...] = (
    ("cpu_usage_seconds_total", "counter", "CPU time used, in seconds", 'cpu="total"', _column("cpu", NANO)),
    ("cpu_user_seconds_total", "counter", "CPU time in user mode", "", _column("cpu_user", NANO)),
    ("cpu_system_seconds_total", "counter", "CPU time in the kernel", "", _column("cpu_system", NANO)),
    ("cpu_cfs_periods_total", "counter", "Periods of the CPU limit", "", _column("periods")),
    ("cpu_cfs_throttled_periods_total", "counter", "Throttled periods", "", _column("throttled_periods")),
    ("cpu_cfs_throttled_seconds_total", "counter", "Time throttled", "", _column("throttled", NANO)),
    ("cpu_cfs_burst_periods_total", "counter", "Periods with a burst", "", _column("bursts")),
    ("cpu_cfs_burst_seconds_total", "counter", "Time used in bursts", "", _column("burst", NANO)),
    (
        "memory_working_set_bytes",
        "gauge",
        "Memory in use less idle cache",
        "",
        lambda table: (table.working_set, 0),
    ),
    ("memory_usage_bytes", "gauge", "Memory in use", "", _column("memory")),
    ("memory_max_usage_bytes", "gauge", "Highest memory use so far", "", _column("memory_peak")),
    ("memory_rss", "gauge", "Anonymous memory", "", _column("rss")),
    ("memory_cache", "gauge", "Page cache", "", _column("cache")),
    ("memory_mapped_file", "gauge", "Mapped files", "", _column("mapped")),
    ("memory_total_active_file_bytes", "gauge", "Active page cache", "", _column("active_file")),
    ("memory_total_inactive_file_bytes", "gauge", "Inactive page cache", "", _column("inactive_file")),
    ("memory_swap", "gauge", "Swap in use", "", _column("swap")),
    ("memory_failcnt", "counter", "Times that the memory limit was reached", "", _column("memory_failures")),
    ("oom_events_total", "counter", "Processes killed for lack of memory", "", _column("oom_kills")),
    ("processes", "gauge", "Processes", "", _column("processes")),
    ("file_descriptors", "gauge", "Open file descriptors", "", _opened("descriptors")),
    ("sockets", "gauge", "Open sockets", "", _opened("sockets")),
    (
        "ulimits_soft",
        "gauge",
        "Soft limit of the first process, -1 for none",
        'ulimit="max_open_files"',
        _opened("open_files_limit"),
    ),
    ("threads", "gauge", "Threads", "", _column("threads")),
    ("threads_max", "gauge", "Limit of threads, 0 for none", "", _limit("threads_limit")),
    ("spec_cpu_shares", "gauge", "CPU shares", "", _column("shares")),
    ("spec_cpu_period", "gauge", "Period of the CPU limit, in microseconds", "", _column("period")),
    ("spec_memory_limit_bytes", "gauge", "Memory limit, 0 for none", "", _limit("memory_limit")),
    ("spec_memory_swap_limit_bytes", "gauge", "Limit with swap, 0 for none", "", _limit("swap_limit")),
    (
        "spec_memory_reservation_limit_bytes",
        "gauge",
        "Soft limit, never set",
        "",
        lambda table: (array("q", bytes(8 * len(table))), 0),
    ),
    ("pressure_cpu_waiting_seconds_total", "counter", "Some waited for CPU", "", _stalled("cpu", "some")),
    ("pressure_cpu_stalled_seconds_total", "counter", "All waited for CPU", "", _stalled("cpu", "full")),
    (
        "pressure_memory_waiting_seconds_total",
        "counter",
        "Some waited for memory",
        "",
        _stalled("memory", "some"),
    ),
    (
        "pressure_memory_stalled_seconds_total",
        "counter",
        "All waited for memory",
        "",
        _stalled("memory", "full"),
    ),
    ("pressure_io_waiting_seconds_total", "counter", "Some waited for disks", "", _stalled("io", "some")),
    ("pressure_io_stalled_seconds_total", "counter", "All waited for disks", "", _stalled("io", "full")),
)
_NETWORK: tuple[tuple[str, str], ...] = (
    ("receive_bytes_total", "Bytes received"),
    ("receive_packets_total", "Packets received"),
    ("receive_errors_total", "Errors when receiving"),
    ("receive_packets_dropped_total", "Packets dropped when receiving"),
    ("transmit_bytes_total", "Bytes sent"),
    ("transmit_packets_total", "Packets sent"),
    ("transmit_errors_total", "Errors when sending"),
    ("transmit_packets_dropped_total", "Packets dropped when sending"),
)
"""Series in the order of an interface's counters."""
_IO = (
    ("fs_reads_bytes_total", "Bytes read", "read_bytes"),
    ("fs_writes_bytes_total", "Bytes written", "written_bytes"),
    ("fs_reads_total", "Reads", "reads"),
    ("fs_writes_total", "Writes", "writes"),
)


_FILESYSTEMS = (
    ("fs_limit_bytes", "Size of the filesystem", "limit"),
    ("fs_usage_bytes", "Bytes in use", "usage"),
    ("fs_inodes_total", "Inodes", "inodes"),
    ("fs_inodes_free", "Free inodes", "inodes_free"),
)
_DISKS = (
    ("fs_reads_merged_total", "counter", "Reads merged", "reads_merged", 0),
    ("fs_sector_reads_total", "counter", "Sectors read", "sectors_read", 0),
    ("fs_read_seconds_total", "counter", "Time spent reading", "read_milliseconds", MILLI),
    ("fs_writes_merged_total", "counter", "Writes merged", "writes_merged", 0),
    ("fs_sector_writes_total", "counter", "Sectors written", "sectors_written", 0),
    ("fs_write_seconds_total", "counter", "Time spent writing", "write_milliseconds", MILLI),
    ("fs_io_current", "gauge", "Requests in progress", "in_progress", 0),
    ("fs_io_time_seconds_total", "counter", "Time with requests in progress", "io_milliseconds", MILLI),
    ("fs_io_time_weighted_seconds_total", "counter", "Weighted time", "weighted_milliseconds", MILLI),
)


class CadvisorPage:
    """Write the page of one node; keeps the labels of the cgroups."""

    def __init__(self) -> None:
        self._places = GroupLabels()

    def text(self, usage: NodeUsage) -> Iterator[bytes]:
        """Yield the page in Prometheus' text format, piece by piece."""
        return exposition(list(_page(usage, self._places.of(usage))))


def _page(usage: NodeUsage, shown: LabelledGroups) -> Iterator[Series]:
    table, rows, labels = usage.table, shown.rows, shown.labels
    for name, kind, help, extra, read in _SERIES:
        values, point = read(table)
        opening = f"container_{name}{{{extra + ',' if extra else ''}"
        yield _series(f"container_{name}", help, kind, opening, labels, ColumnRows(values, rows), point)
    quota = table.column("quota")
    yield _family(
        "container_spec_cpu_quota",
        "CPU limit in each period, in microseconds; only of groups with one",
        "gauge",
        labels,
        array("q", [quota[row] if quota[row] > 0 else ABSENT for row in rows]),
    )
    yield from _failures(table, shown)
    yield from _devices(table, shown)
    yield from _filesystems(usage.filesystems, shown.labels)
    yield from _networks(usage, shown)
    yield _family(
        "container_start_time_seconds", "Start in Unix seconds", "gauge", labels, shown.started, MICRO
    )
    seen = array("q", [int(usage.time)]) * len(rows)
    yield _family("container_last_seen", "When it was last seen, in Unix seconds", "gauge", labels, seen)
    yield _plain("container_scrape_error", "1 if something could not be read", 0)
    yield _plain("machine_cpu_cores", "CPUs", os.cpu_count() or 1)
    yield _plain("machine_memory_bytes", "Memory", memory_total())
    yield _plain("machine_swap_bytes", "Swap", swap()[0])


def _series(
    name: str, help: str, kind: str, opening: str, labels: Texts, values: Values, point: int = 0
) -> Series:
    return Series(head(name, help, kind).encode(), opening.encode(), labels, values, point)


def _family(name: str, help: str, kind: str, labels: Texts, values: Values, point: int = 0) -> Series:
    return _series(name, help, kind, f"{name}{{", labels, values, point)


def _plain(name: str, help: str, value: int) -> Series:
    """Write one number of the whole machine."""
    return _family(name, help, "gauge", joined([b""]), array("q", [value]))


def _parts(
    name: str,
    help: str,
    labels: Texts,
    parts: Iterable[tuple[str, Values, array[int] | None]],
    kind: str = "counter",
    point: int = 0,
) -> Iterator[Series]:
    """Write a metric with further labels: each part has the text of these, the values, and the rows."""
    heading = head(name, help, kind).encode()
    for further, values, picked in parts:
        yield Series(heading, f"{name}{{{further},".encode(), labels, values, point, picked=picked)
        heading = b""


def _failures(table: GroupTable, shown: LabelledGroups) -> Iterator[Series]:
    kinds = (("pgfault", "faults"), ("pgmajfault", "major_faults"))
    values = {kind: table.column(column) for kind, column in kinds}
    parts = [
        (f'failure_type="{kind}",scope="hierarchy"', ColumnRows(amounts, shown.rows), None)
        for kind, amounts in values.items()
        if any(amounts[row] != ABSENT for row in shown.rows)
    ]
    yield from _parts("container_memory_failures_total", "Page faults", shown.labels, parts)


def _devices(table: GroupTable, shown: LabelledGroups) -> Iterator[Series]:
    """Write the traffic of block devices, by number and by name."""
    place = {row: at for at, row in enumerate(shown.rows)}
    places: dict[tuple[int, int], array[int]] = {}
    moved: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for row, transfers in table.io.items():
        if row in place:
            for major, minor, *amounts in transfers:
                places.setdefault((major, minor), array("q")).append(place[row])
                moved.setdefault((major, minor), []).append(tuple(amounts))
    amounts_of = {
        device: dict(zip(IO_COLUMNS[3:], (array("q", each) for each in zip(*rows, strict=True)), strict=True))
        for device, rows in moved.items()
    }
    names = {device: device_name(*device) for device in moved}
    by_operation = [
        (
            labelled(
                ("device", "major", "minor", "operation"), (names[device], *map(str, device), operation)
            ),
            amounts[column],
            places[device],
        )
        for device, amounts in amounts_of.items()
        for operation, column in (("Read", "read_bytes"), ("Write", "written_bytes"))
    ]
    name = "container_blkio_device_usage_total"
    yield from _parts(name, "Bytes read from and written to a block device", shown.labels, by_operation)
    for name, help, column in _IO:
        parts = [
            (labelled(("device",), (names[device],)), amounts[column], places[device])
            for device, amounts in amounts_of.items()
        ]
        yield from _parts(f"container_{name}", help, shown.labels, parts)


def _filesystems(filesystems: Sequence[Filesystem], labels: Texts) -> Iterator[Series]:
    """Write the machine's filesystems and disks, which are of the root cgroup."""
    root = array("q", [0])

    def family(name: str, kind: str, help: str, values: dict[str, int], point: int = 0) -> Iterator[Series]:
        parts = [
            (labelled(("device",), (device,)), array("q", [value]), root) for device, value in values.items()
        ]
        yield from _parts(f"container_{name}", help, labels, parts, kind, point)

    for name, help, field in _FILESYSTEMS:
        yield from family(name, "gauge", help, {each.device: getattr(each, field) for each in filesystems})
    for name, kind, help, count, point in _DISKS:
        at = DISK_COUNTS.index(count)
        values = {each.device: each.disk[at] for each in filesystems if each.disk}
        yield from family(name, kind, help, values, point)


def _networks(usage: NodeUsage, shown: LabelledGroups) -> Iterator[Series]:
    """Write the network counters by interface; the host's belong to the root cgroup."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for place, interfaces in [(0, usage.network), *shown.networks_of(usage)]:
        for one in interfaces:
            found.setdefault(one.name, []).append((place, *one.counters))
    by_name = {
        name: [array("q", column) for column in zip(*rows, strict=True)] for name, rows in found.items()
    }
    for at, (name, help) in enumerate(_NETWORK, start=1):
        parts = [
            (labelled(("interface",), (interface,)), columns[at], columns[0])
            for interface, columns in by_name.items()
        ]
        yield from _parts(f"container_network_{name}", help, shown.labels, parts)
