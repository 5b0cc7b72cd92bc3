"""`/metrics/cadvisor`: cAdvisor's names and labels, as the stock rules and dashboards of Kubernetes use them.

Each group has one set of labels, made once; a series is a name and a way to read it from a group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.node.machine import memory_total, swap
from engine.node.usage.group import GroupSample
from engine.node.usage.network import Interface
from engine.node.usage.sampler import NodeUsage, UsedGroup
from engine.server.metrics_text import head, labelled, number

NANO = 1e-9
MICRO = 1e-6

Read = Callable[[GroupSample], float | None]


@dataclass(frozen=True, slots=True)
class _Row:
    """A group and the text of its labels, without braces."""

    labels: str
    sample: GroupSample
    started: float


def _scaled(field: str, scale: float = 1) -> Read:
    def read(sample: GroupSample) -> float | None:
        value = getattr(sample, field)
        return None if value is None else value * scale

    return read


def _limit(field: str) -> Read:
    """0 stands for no limit."""
    return lambda sample: getattr(sample, field) or 0


def _stalled(resource: str, kind: str) -> Read:
    def read(sample: GroupSample) -> float | None:
        found = sample.pressure.get(resource, {}).get(kind)
        return None if found is None else found.total * MICRO

    return read


_SERIES: tuple[tuple[str, str, str, str, Read], ...] = (
    ("cpu_usage_seconds_total", "counter", "CPU time used, in seconds", 'cpu="total"', _scaled("cpu", NANO)),
    ("cpu_user_seconds_total", "counter", "CPU time in user mode", "", _scaled("cpu_user", NANO)),
    ("cpu_system_seconds_total", "counter", "CPU time in the kernel", "", _scaled("cpu_system", NANO)),
    ("cpu_cfs_periods_total", "counter", "Periods of the CPU limit", "", _scaled("periods")),
    ("cpu_cfs_throttled_periods_total", "counter", "Periods cut short", "", _scaled("throttled_periods")),
    ("cpu_cfs_throttled_seconds_total", "counter", "Time held back", "", _scaled("throttled", NANO)),
    ("memory_working_set_bytes", "gauge", "Memory in use less idle cache", "", _scaled("working_set")),
    ("memory_usage_bytes", "gauge", "Memory in use", "", _scaled("memory")),
    ("memory_max_usage_bytes", "gauge", "Most memory ever in use", "", _scaled("memory_peak")),
    ("memory_rss", "gauge", "Anonymous memory", "", _scaled("rss")),
    ("memory_cache", "gauge", "Page cache", "", _scaled("cache")),
    ("memory_mapped_file", "gauge", "Mapped files", "", _scaled("mapped")),
    ("memory_swap", "gauge", "Swap in use", "", _scaled("swap")),
    ("memory_failcnt", "counter", "Times that the limit was met", "", _scaled("memory_failures")),
    ("oom_events_total", "counter", "Processes killed for memory", "", _scaled("oom_kills")),
    ("processes", "gauge", "Processes", "", _scaled("processes")),
    ("threads", "gauge", "Threads", "", _scaled("threads")),
    ("threads_max", "gauge", "Most threads, 0 for any number", "", _limit("threads_limit")),
    ("spec_cpu_shares", "gauge", "CPU shares", "", _scaled("shares")),
    ("spec_cpu_period", "gauge", "Period of the CPU limit, in microseconds", "", _scaled("period")),
    ("spec_memory_limit_bytes", "gauge", "Memory limit, 0 for none", "", _limit("memory_limit")),
    ("spec_memory_swap_limit_bytes", "gauge", "Limit with swap, 0 for none", "", _limit("swap_limit")),
    ("spec_memory_reservation_limit_bytes", "gauge", "Soft limit, never set", "", lambda _: 0),
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
_NETWORK: tuple[tuple[str, str, Callable[[Interface], int]], ...] = (
    ("receive_bytes_total", "Bytes received", lambda one: one.rx_bytes),
    ("receive_packets_total", "Packets received", lambda one: one.rx_packets),
    ("receive_errors_total", "Errors when receiving", lambda one: one.rx_errors),
    ("receive_packets_dropped_total", "Packets dropped when receiving", lambda one: one.rx_dropped),
    ("transmit_bytes_total", "Bytes sent", lambda one: one.tx_bytes),
    ("transmit_packets_total", "Packets sent", lambda one: one.tx_packets),
    ("transmit_errors_total", "Errors when sending", lambda one: one.tx_errors),
    ("transmit_packets_dropped_total", "Packets dropped when sending", lambda one: one.tx_dropped),
)
_IO = (
    ("fs_reads_bytes_total", "Bytes read", 1),
    ("fs_writes_bytes_total", "Bytes written", 2),
    ("fs_reads_total", "Reads", 3),
    ("fs_writes_total", "Writes", 4),
)


def cadvisor_metrics(usage: NodeUsage) -> bytes:
    """The whole page, in Prometheus' text format."""
    return "".join(_page(usage)).encode()


def _page(usage: NodeUsage) -> Iterator[str]:
    rows, networks = _rows(usage)
    for name, kind, help, extra, read in _SERIES:
        lines = [
            f"container_{name}{{{extra + ',' if extra else ''}{row.labels}}} {number(value)}\n"
            for row in rows
            if (value := read(row.sample)) is not None
        ]
        if lines:
            yield head(f"container_{name}", help, kind) + "".join(lines)
    yield _quotas(rows)
    yield _failures(rows)
    yield _block_devices(rows)
    for name, help, column in _IO:
        yield head(f"container_{name}", help, "counter") + "".join(
            f'container_{name}{{device="{device[0]}",{row.labels}}} {device[column]}\n'
            for row in rows
            for device in row.sample.io
        )
    for name, help, count in _NETWORK:
        yield head(f"container_network_{name}", help, "counter") + "".join(
            f'container_network_{name}{{interface="{one.name}",{labels}}} {count(one)}\n'
            for labels, interfaces in networks
            for one in interfaces
        )
    yield head("container_start_time_seconds", "Start in Unix seconds", "gauge") + "".join(
        f"container_start_time_seconds{{{row.labels}}} {number(row.started)}\n" for row in rows if row.started
    )
    yield head("container_last_seen", "When it was last there, in Unix seconds", "gauge") + "".join(
        f"container_last_seen{{{row.labels}}} {int(usage.time)}\n" for row in rows
    )
    yield (
        head("container_scrape_error", "1 if something could not be read", "gauge")
        + "container_scrape_error 0\n"
    )
    yield from _machine()


def _quotas(rows: list[_Row]) -> str:
    """Only of groups with a limit, as cAdvisor has it."""
    name = "container_spec_cpu_quota"
    return head(name, "CPU limit in each period, in microseconds", "gauge") + "".join(
        f"{name}{{{row.labels}}} {row.sample.quota}\n" for row in rows if (row.sample.quota or 0) > 0
    )


def _failures(rows: list[_Row]) -> str:
    name = "container_memory_failures_total"
    lines = []
    for row in rows:
        for kind, value in (("pgfault", row.sample.faults), ("pgmajfault", row.sample.major_faults)):
            if value is not None:
                lines.append(f'{name}{{failure_type="{kind}",scope="hierarchy",{row.labels}}} {value}\n')
    return head(name, "Page faults", "counter") + "".join(lines)


def _block_devices(rows: list[_Row]) -> str:
    name = "container_blkio_device_usage_total"
    lines = []
    for row in rows:
        for device, read, written, _, _ in row.sample.io:
            major, _, minor = device.partition(":")
            for operation, count in (("Read", read), ("Write", written)):
                named = f'device="",major="{major}",minor="{minor}",operation="{operation}"'
                lines.append(f"{name}{{{named},{row.labels}}} {count}\n")
    return head(name, "Bytes that went to and from a block device", "counter") + "".join(lines)


def _rows(usage: NodeUsage) -> tuple[list[_Row], list[tuple[str, list[Interface]]]]:
    """Each group with its labels, and each network namespace with those of the sandbox that owns it."""
    rows = [_row(usage.root)]
    rows += [_row(group) for group in usage.system.values() if group.cgroup.strip("/")]
    networks = [(rows[0].labels, usage.network)]
    for pod in usage.pods:
        record = pod.record
        sandbox = record.sandbox
        started = sandbox.created_at if sandbox is not None else 0.0
        of_pod = {"namespace": record.namespace, "pod": record.name}
        rows.append(_row(pod.group, started, **of_pod))
        owner = rows[-1]
        if pod.sandbox is not None and sandbox is not None:
            owner = _row(pod.sandbox, started, name=sandbox.id, **of_pod)
            rows.append(owner)
        for group in pod.containers:
            container = group.container
            if container is not None:
                rows.append(
                    _row(
                        group,
                        container.started_at,
                        container=container.name,
                        image=container.image,
                        name=container.id,
                        **of_pod,
                    )
                )
        if pod.network:
            networks.append((owner.labels, pod.network))
    return rows, networks


def _row(
    group: UsedGroup,
    started: float = 0.0,
    *,
    container: str = "",
    image: str = "",
    name: str = "",
    namespace: str = "",
    pod: str = "",
) -> _Row:
    labels = labelled(
        ("container", "id", "image", "name", "namespace", "pod"),
        (container, group.cgroup, image, name, namespace, pod),
    )
    return _Row(labels, group.sample, started)


def _machine() -> Iterator[str]:
    for name, help, value in (
        ("machine_cpu_cores", "CPUs", os.cpu_count() or 1),
        ("machine_memory_bytes", "Memory", memory_total()),
        ("machine_swap_bytes", "Swap", swap()[0]),
    ):
        yield f"{head(name, help, 'gauge')}{name} {value}\n"
