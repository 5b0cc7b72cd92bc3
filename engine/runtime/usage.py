"""Read the usage of containers and pods from their cgroups: CRI stats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engine.host import trees
from engine.host.cgroupfs.usage import working_set
from engine.runtime.objects.records import RUNNING, RuntimeContainer
from engine.runtime.shim import cgroup
from engine.wire import cri_v1_pb2 as cri

DISK_PERIOD = 10.0
UNLIMITED = 1 << 60


class CpuSample(NamedTuple):
    timestamp: int
    usage: int


class RuntimeContainerUsage:
    """Read cgroup directories, remembering what a rate or a cache needs. Call `forget` for removed ones."""

    def __init__(self) -> None:
        self._cpu: dict[str, CpuSample] = {}
        self._disk: dict[str, tuple[float, int, int]] = {}

    def forget(self, identifier: str) -> None:
        self._cpu.pop(identifier, None)
        self._disk.pop(identifier, None)

    def container(
        self, container: RuntimeContainer, groups: Sequence[str], writable: Path, mountpoint: str
    ) -> cri.ContainerStats:
        now = time.time_ns()
        size, inodes = self._disk_usage(container.id, writable)
        running = container.state == RUNNING
        return cri.ContainerStats(
            attributes=cri.ContainerAttributes(
                id=container.id,
                metadata=container.config.metadata,
                labels=container.config.labels,
                annotations=container.config.annotations,
            ),
            cpu=self.cpu(container.id, groups) if running else None,
            memory=memory(groups) if running else None,
            swap=_swap(groups) if running else None,
            writable_layer=cri.FilesystemUsage(
                timestamp=now,
                fs_id=cri.FilesystemIdentifier(mountpoint=mountpoint),
                used_bytes=cri.UInt64Value(value=size),
                inodes_used=cri.UInt64Value(value=inodes),
            ),
        )

    def cpu(self, identifier: str, groups: Sequence[str]) -> cri.CpuUsage:
        """Read the CPU time since the start, and the cores used since the last read (0.1 s ago or more)."""
        usage = _number(groups, "cpuacct.usage")
        if usage is None:
            usage = _table(groups, "cpu.stat").get("usage_usec", 0) * 1000
        now = CpuSample(time.time_ns(), usage)
        found = cri.CpuUsage(timestamp=now.timestamp, usage_core_nano_seconds=cri.UInt64Value(value=usage))
        before = self._cpu.get(identifier)
        if before is None:
            self._cpu[identifier] = now
        elif now.timestamp - before.timestamp > 100_000_000:
            elapsed = now.timestamp - before.timestamp
            used = max(0, usage - before.usage)
            found.usage_nano_cores.value = used * 1_000_000_000 // elapsed
            self._cpu[identifier] = now
        return found

    def _disk_usage(self, identifier: str, directory: Path) -> tuple[int, int]:
        now = time.monotonic()
        known = self._disk.get(identifier)
        if known is None or now - known[0] > DISK_PERIOD:
            known = self._disk[identifier] = (now, *trees.disk_usage(directory))
        return known[1], known[2]


def memory(groups: Sequence[str]) -> cri.MemoryUsage:
    """Read memory, and its working set."""
    table = _table(groups, "memory.stat")
    usage = _number(groups, "memory.usage_in_bytes")
    limit = _number(groups, "memory.limit_in_bytes")
    prefix = "total_" if usage is not None else ""
    if usage is None:
        usage = _number(groups, "memory.current") or 0
        limit = _number(groups, "memory.max")
    used = working_set(usage, table.get(f"{prefix}inactive_file", 0))
    found = cri.MemoryUsage(
        timestamp=time.time_ns(),
        working_set_bytes=cri.UInt64Value(value=used),
        usage_bytes=cri.UInt64Value(value=usage),
        rss_bytes=cri.UInt64Value(value=table.get("total_rss", table.get("anon", 0))),
        page_faults=cri.UInt64Value(value=table.get(f"{prefix}pgfault", 0)),
        major_page_faults=cri.UInt64Value(value=table.get(f"{prefix}pgmajfault", 0)),
    )
    if limit is not None and limit < UNLIMITED:
        found.available_bytes.value = max(0, limit - used)
    return found


def network(pid: int) -> cri.NetworkUsage:
    """Read counters of the interfaces in the network namespace of `pid`."""
    interfaces = []
    for line in _text(f"/proc/{pid}/net/dev").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        words = numbers.split()
        if name.strip() != "lo":
            interfaces.append(
                cri.NetworkInterfaceUsage(
                    name=name.strip(),
                    rx_bytes=cri.UInt64Value(value=int(words[0])),
                    rx_errors=cri.UInt64Value(value=int(words[2])),
                    tx_bytes=cri.UInt64Value(value=int(words[8])),
                    tx_errors=cri.UInt64Value(value=int(words[10])),
                )
            )
    return cri.NetworkUsage(
        timestamp=time.time_ns(),
        default_interface=interfaces[0] if interfaces else None,
        interfaces=interfaces[1:],
    )


def processes(groups: Sequence[str]) -> cri.ProcessUsage:
    count = _number(groups, "pids.current")
    if count is None:
        count = len(cgroup.members(groups))
    return cri.ProcessUsage(timestamp=time.time_ns(), process_count=cri.UInt64Value(value=count))


def _swap(groups: Sequence[str]) -> cri.SwapUsage:
    used = _number(groups, "memory.swap.current")
    if used is None:
        used = _table(groups, "memory.stat").get("total_swap", 0)
    return cri.SwapUsage(timestamp=time.time_ns(), swap_usage_bytes=cri.UInt64Value(value=used))


def _number(groups: Sequence[str], name: str) -> int | None:
    for group in groups:
        text = _text(f"{group}/{name}").strip()
        if text.isdigit():
            return int(text)
    return None


def _table(groups: Sequence[str], name: str) -> dict[str, int]:
    for group in groups:
        lines = [line.split() for line in _text(f"{group}/{name}").splitlines()]
        table = {words[0]: int(words[1]) for words in lines if len(words) == 2}
        if table:
            return table
    return {}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
