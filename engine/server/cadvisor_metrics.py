"""`/metrics/cadvisor`: cAdvisor's names and labels, as the stock rules and dashboards of Kubernetes use them.

Each group has one set of labels, made once; a series is a name and a column of the table of groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from engine._fast.exposition import ABSENT, Series, exposition
from engine.node.machine import device_name, memory_total, swap
from engine.node.usage.group import GroupTable
from engine.node.usage.network import Interface
from engine.node.usage.sampler import NodeUsage, UsedGroup
from engine.server.metrics_text import head, labelled

NANO = 9
MICRO = 6
MOST_LABELS = 1 << 15

Numbers = NDArray[np.int64]
Column = Callable[[GroupTable], tuple[Numbers, int]]
"""Values and how many of their digits are behind the point."""


@dataclass(slots=True)
class _Shown:
    """Groups that have a place on the page: rows of the table, the text of their labels, their starts."""

    rows: list[int]
    labels: list[bytes]
    started: list[int]


def _column(name: str, point: int = 0) -> Column:
    return lambda table: (table.column(name), point)


def _limit(name: str) -> Column:
    """0 stands for no limit."""

    def read(table: GroupTable) -> tuple[Numbers, int]:
        values = table.column(name)
        return np.where(values == ABSENT, 0, values), 0

    return read


def _working_set(table: GroupTable) -> tuple[Numbers, int]:
    memory, idle = table.column("memory"), table.column("inactive_file")
    left = np.maximum(memory - np.where(idle == ABSENT, 0, idle), 0)
    return np.where(memory == ABSENT, ABSENT, left), 0


def _stalled(resource: str, kind: str) -> Column:
    return lambda table: (table.stalled(resource, kind), MICRO)


_SERIES: tuple[tuple[str, str, str, str, Column], ...] = (
    ("cpu_usage_seconds_total", "counter", "CPU time used, in seconds", 'cpu="total"', _column("cpu", NANO)),
    ("cpu_user_seconds_total", "counter", "CPU time in user mode", "", _column("cpu_user", NANO)),
    ("cpu_system_seconds_total", "counter", "CPU time in the kernel", "", _column("cpu_system", NANO)),
    ("cpu_cfs_periods_total", "counter", "Periods of the CPU limit", "", _column("periods")),
    ("cpu_cfs_throttled_periods_total", "counter", "Periods cut short", "", _column("throttled_periods")),
    ("cpu_cfs_throttled_seconds_total", "counter", "Time held back", "", _column("throttled", NANO)),
    ("memory_working_set_bytes", "gauge", "Memory in use less idle cache", "", _working_set),
    ("memory_usage_bytes", "gauge", "Memory in use", "", _column("memory")),
    ("memory_max_usage_bytes", "gauge", "Most memory ever in use", "", _column("memory_peak")),
    ("memory_rss", "gauge", "Anonymous memory", "", _column("rss")),
    ("memory_cache", "gauge", "Page cache", "", _column("cache")),
    ("memory_mapped_file", "gauge", "Mapped files", "", _column("mapped")),
    ("memory_swap", "gauge", "Swap in use", "", _column("swap")),
    ("memory_failcnt", "counter", "Times that the limit was met", "", _column("memory_failures")),
    ("oom_events_total", "counter", "Processes killed for memory", "", _column("oom_kills")),
    ("processes", "gauge", "Processes", "", _column("processes")),
    ("threads", "gauge", "Threads", "", _column("threads")),
    ("threads_max", "gauge", "Most threads, 0 for any number", "", _limit("threads_limit")),
    ("spec_cpu_shares", "gauge", "CPU shares", "", _column("shares")),
    ("spec_cpu_period", "gauge", "Period of the CPU limit, in microseconds", "", _column("period")),
    ("spec_memory_limit_bytes", "gauge", "Memory limit, 0 for none", "", _limit("memory_limit")),
    ("spec_memory_swap_limit_bytes", "gauge", "Limit with swap, 0 for none", "", _limit("swap_limit")),
    (
        "spec_memory_reservation_limit_bytes",
        "gauge",
        "Soft limit, never set",
        "",
        lambda table: (np.zeros(len(table.cgroups), np.int64), 0),
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
_NETWORK: tuple[tuple[str, str, str], ...] = (
    ("receive_bytes_total", "Bytes received", "rx_bytes"),
    ("receive_packets_total", "Packets received", "rx_packets"),
    ("receive_errors_total", "Errors when receiving", "rx_errors"),
    ("receive_packets_dropped_total", "Packets dropped when receiving", "rx_dropped"),
    ("transmit_bytes_total", "Bytes sent", "tx_bytes"),
    ("transmit_packets_total", "Packets sent", "tx_packets"),
    ("transmit_errors_total", "Errors when sending", "tx_errors"),
    ("transmit_packets_dropped_total", "Packets dropped when sending", "tx_dropped"),
)
_IO = (
    ("fs_reads_bytes_total", "Bytes read", "read_bytes"),
    ("fs_writes_bytes_total", "Bytes written", "written_bytes"),
    ("fs_reads_total", "Reads", "reads"),
    ("fs_writes_total", "Writes", "writes"),
)


def cadvisor_metrics(usage: NodeUsage) -> bytes:
    """The whole page, in Prometheus' text format."""
    return exposition(list(_page(usage)))


def _page(usage: NodeUsage) -> Iterator[Series]:
    table = usage.table
    shown, networks = _shown(usage)
    rows = np.array(shown.rows, np.intp)
    for name, kind, help, extra, read in _SERIES:
        values, point = read(table)
        opening = f"container_{name}{{{extra + ',' if extra else ''}"
        yield _series(f"container_{name}", help, kind, opening, shown.labels, values[rows], point)
    quota = table.column("quota")[rows]
    yield _family(
        "container_spec_cpu_quota",
        "CPU limit in each period, in microseconds; only of groups with one",
        "gauge",
        shown.labels,
        np.where(quota > 0, quota, ABSENT),
    )
    yield from _failures(table, rows, shown.labels)
    yield from _devices(table, shown)
    for name, help, field in _NETWORK:
        yield _family(
            f"container_network_{name}",
            help,
            "counter",
            [_interface(one) + labels for labels, interfaces in networks for one in interfaces],
            [getattr(one, field) for _, interfaces in networks for one in interfaces],
        )
    started = np.array(shown.started, np.int64)
    yield _family(
        "container_start_time_seconds",
        "Start in Unix seconds",
        "gauge",
        shown.labels,
        np.where(started > 0, started, ABSENT),
        MICRO,
    )
    seen = np.full(len(rows), int(usage.time), np.int64)
    yield _family(
        "container_last_seen", "When it was last there, in Unix seconds", "gauge", shown.labels, seen
    )
    yield _plain("container_scrape_error", "1 if something could not be read", 0)
    yield _plain("machine_cpu_cores", "CPUs", os.cpu_count() or 1)
    yield _plain("machine_memory_bytes", "Memory", memory_total())
    yield _plain("machine_swap_bytes", "Swap", swap()[0])


def _series(
    name: str, help: str, kind: str, opening: str, labels: list[bytes], values: Numbers, point: int = 0
) -> Series:
    return Series(head(name, help, kind).encode(), opening.encode(), labels, values, point)


def _family(
    name: str, help: str, kind: str, labels: list[bytes], values: Sequence[int] | Numbers, point: int = 0
) -> Series:
    return _series(name, help, kind, f"{name}{{", labels, np.asarray(values, np.int64), point)


def _plain(name: str, help: str, value: int) -> Series:
    """One number of the whole machine."""
    return _family(name, help, "gauge", [b""], [value])


def _failures(table: GroupTable, rows: NDArray[np.intp], labels: list[bytes]) -> Iterator[Series]:
    name = "container_memory_failures_total"
    heading = head(name, "Page faults", "counter").encode()
    for kind, column in (("pgfault", "faults"), ("pgmajfault", "major_faults")):
        opening = f'{name}{{failure_type="{kind}",scope="hierarchy",'.encode()
        yield Series(heading, opening, labels, table.column(column)[rows])
        heading = b""


def _devices(table: GroupTable, shown: _Shown) -> Iterator[Series]:
    """What went to and from block devices, by number and by name."""
    place = dict(zip(shown.rows, shown.labels, strict=True))
    moved = [row for row in table.io if row.row in place]
    names = {(row.major, row.minor): "" for row in moved}
    names = {device: labelled(("device",), (device_name(*device),)) for device in names}
    by_operation: list[bytes] = []
    bytes_moved: list[int] = []
    for row in moved:
        for operation, count in (("Read", row.read_bytes), ("Write", row.written_bytes)):
            name = names[row.major, row.minor]
            numbers = f'{name},major="{row.major}",minor="{row.minor}",operation="{operation}",'
            by_operation.append(numbers.encode() + place[row.row])
            bytes_moved.append(count)
    yield _family(
        "container_blkio_device_usage_total",
        "Bytes that went to and from a block device",
        "counter",
        by_operation,
        bytes_moved,
    )
    labels = [f"{names[row.major, row.minor]},".encode() + place[row.row] for row in moved]
    for name, help, field in _IO:
        counts = [getattr(row, field) for row in moved]
        yield _family(f"container_{name}", help, "counter", labels, counts)


def _interface(one: Interface) -> bytes:
    return labelled(("interface",), (one.name,)).encode() + b","


def _shown(usage: NodeUsage) -> tuple[_Shown, list[tuple[bytes, list[Interface]]]]:
    """Each group with its labels, and each network namespace with those of the sandbox that owns it."""
    shown = _Shown([], [], [])

    def put(group: UsedGroup, started: float, *rest: str) -> bytes:
        labels = _labels(group.cgroup, *rest)
        shown.rows.append(group.sample.row)
        shown.labels.append(labels)
        shown.started.append(int(started * 10**MICRO))
        return labels

    networks = [(put(usage.root, 0.0), usage.network)]
    for group in usage.system.values():
        if group.cgroup.strip("/"):
            put(group, 0.0)
    for pod in usage.pods:
        record = pod.record
        sandbox = record.sandbox
        started = sandbox.created_at if sandbox is not None else 0.0
        owner = put(pod.group, started, record.namespace, record.name)
        if pod.sandbox is not None and sandbox is not None:
            owner = put(pod.sandbox, started, record.namespace, record.name, sandbox.id)
        for group in pod.containers:
            of = group.container
            if of is not None:
                put(group, of.started_at, record.namespace, record.name, of.id, of.name, of.image)
        if pod.network:
            networks.append((owner, pod.network))
    return shown, networks


@lru_cache(MOST_LABELS)
def _labels(
    cgroup: str, namespace: str = "", pod: str = "", name: str = "", container: str = "", image: str = ""
) -> bytes:
    """Kept from one scrape to the next: most groups are the same, and the text takes longest."""
    return labelled(
        ("container", "id", "image", "name", "namespace", "pod"),
        (container, cgroup, image, name, namespace, pod),
    ).encode()
