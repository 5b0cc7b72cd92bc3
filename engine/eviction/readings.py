"""Reads the eviction signals of a node with a few system calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import InvalidInput, KubengineError
from engine.eviction import signals
from engine.eviction.layout import CONTAINERFS, IMAGEFS, NODEFS, Layout
from engine.eviction.signals import Observations, SignalObservation
from engine.eviction.stall import PRESSURE, WHOLE, stalled
from engine.host.cgroupfs.mounts import Mounts, readable_mounts
from engine.host.cgroupfs.usage import CgroupUsage, HeldFile, machine_memory, meminfo_field
from engine.images.filesystem import read_filesystem

WORKING_SET: Final = "working-set"
MEMAVAILABLE: Final = "memavailable"
PROC: Final = Path("/proc")

log = logging.getLogger("kubengine.eviction")


class NodeView(msgspec.Struct, frozen=True):
    """Tell what counts as the node; by default the machine.

    With a `cgroup`, that cgroup and its content with the given capacities (bytes, process ids), so that an
    agent can be limited to a part of a machine. `pods_cgroup` is the root of all pods' cgroups, for
    allocatableMemory.available.
    """

    cgroup: str = "/"
    memory_capacity: int | None = None
    pid_capacity: int | None = None
    pods_cgroup: str | None = None
    mounts: Mounts = msgspec.field(default_factory=readable_mounts)


class SignalReader:
    """Read signals from open descriptors; call `close` when done.

    An unreadable signal is missing in the observations, which is logged once until it can be read again.
    `swap_allowed`, if swap counts, is how many bytes all pods may swap together.
    """

    def __init__(
        self,
        view: NodeView,
        *,
        nodefs: Path,
        memory_signal: str = WORKING_SET,
        stall: bool = False,
        swap_allowed: Callable[[], int] | None = None,
    ) -> None:
        if memory_signal not in (WORKING_SET, MEMAVAILABLE):
            raise InvalidInput(
                f"{memory_signal!r} is not one of {WORKING_SET}, {MEMAVAILABLE}",
                subject="eviction.memorySignal",
            )
        self.view = view
        self.node = CgroupUsage(view.cgroup, view.mounts)
        self.pods = CgroupUsage(view.pods_cgroup, view.mounts) if view.pods_cgroup else None
        self.nodefs = nodefs
        self.imagefs: Path | None = None
        self.containerfs: Path | None = None
        self.layout: Layout = "shared"
        self._swap_allowed = swap_allowed
        self._kernel_estimate = memory_signal == MEMAVAILABLE
        self._whole_machine = view.cgroup.strip("/") == ""
        self._meminfo = HeldFile(PROC / "meminfo")
        self._loadavg = HeldFile(PROC / "loadavg")
        self._pid_limits = (HeldFile(PROC / "sys/kernel/pid_max"), HeldFile(PROC / "sys/kernel/threads-max"))
        all_pods = view.pods_cgroup or view.cgroup
        pressure = view.mounts.directory("memory", all_pods) / PRESSURE
        self._pressure = HeldFile(pressure) if stall else None
        self._capacity = view.memory_capacity
        self._unreadable: set[str] = set()

    def read(self, now: float) -> Observations:
        """Read all readable signals. `now` becomes their time."""
        found: Observations = {}
        self._try(found, signals.MEMORY_AVAILABLE, self._memory_and_swap, now)
        if self.pods is not None:
            self._try(found, signals.ALLOCATABLE_MEMORY_AVAILABLE, self._allocatable_memory, now)
        self._try(found, signals.PID_AVAILABLE, self._pids, now)
        if self._pressure is not None:
            self._try(found, signals.MEMORY_STALL, self._stall, now)
        for name, path in (
            (NODEFS, self.nodefs),
            (IMAGEFS, self.imagefs),
            (CONTAINERFS, self.containerfs),
        ):
            if path is not None:
                self._filesystem(found, name, path, now)
        return found

    def memory_capacity(self) -> int:
        """Return the memory capacity in bytes. Raises `OSError`."""
        if self._capacity is None:
            self._capacity = self._meminfo_field(b"MemTotal:")
        return self._capacity

    def close(self) -> None:
        self.node.close()
        if self.pods is not None:
            self.pods.close()
        if self._pressure is not None:
            self._pressure.close()
        for file in (self._meminfo, self._loadavg, *self._pid_limits):
            file.close()

    def _memory_and_swap(self) -> tuple[int, int]:
        available, capacity = self._memory()
        return available + self.swap_left(), capacity

    def swap_left(self) -> int:
        """Return the part of available memory that pods may still swap out; 0 if swap does not count. Raises
        `OSError`.
        """
        if self._swap_allowed is None:
            return 0
        swapped = (self.pods or self.node).swapped()
        return min(max(self._swap_allowed() - swapped, 0), self._meminfo_field(b"SwapFree:"))

    def _memory(self) -> tuple[int, int]:
        capacity = self.memory_capacity()
        if not self._whole_machine:
            used = self.node.usage_without_cache() if self._kernel_estimate else self.node.working_set()
            return capacity - used, capacity
        if self._kernel_estimate:
            return self._meminfo_field(b"MemAvailable:"), capacity
        _, working_set = machine_memory(self.node, self._meminfo)
        return capacity - working_set, capacity

    def _allocatable_memory(self) -> tuple[int, int] | None:
        assert self.pods is not None
        limit = self.pods.memory_limit()
        return None if limit is None else (limit - self.pods.working_set(), limit)

    def _stall(self) -> tuple[int, int] | None:
        assert self._pressure is not None
        return WHOLE - stalled(self._pressure.read(), b"full", b"avg10"), WHOLE

    def _pids(self) -> tuple[int, int] | None:
        if self.view.pid_capacity is not None:
            return self.view.pid_capacity - self.node.processes(), self.view.pid_capacity
        # As the kubelet: the smaller limit counts. The fourth field of loadavg is runnable/existing tasks,
        # and threads use up process ids, too (proc_loadavg(5)).
        capacity = min(file.number() for file in self._pid_limits)
        running = int(self._loadavg.read().split()[3].partition(b"/")[2])
        return capacity - running, capacity

    def _filesystem(self, found: Observations, name: str, path: Path, now: float) -> None:
        available, inodes_free = f"{name}.available", f"{name}.inodesFree"
        try:
            reading = read_filesystem(path)
        except OSError as error:
            self._log_failure(available, error)
            return
        self._unreadable.discard(available)
        if reading.capacity and reading.available is not None:
            found[available] = SignalObservation(
                min(reading.available, reading.capacity), reading.capacity, now
            )
        # btrfs reports no inodes at all: the signal does not exist there.
        if reading.inodes:
            found[inodes_free] = SignalObservation(
                min(reading.inodes_free or 0, reading.inodes), reading.inodes, now
            )

    def _try(
        self, found: Observations, signal: str, read: Callable[[], tuple[int, int] | None], now: float
    ) -> None:
        try:
            amounts = read()
        except (OSError, ValueError, IndexError, KubengineError) as error:
            self._log_failure(signal, error)
            return
        self._unreadable.discard(signal)
        if amounts is not None:
            found[signal] = SignalObservation(amounts[0], amounts[1], now)

    def _log_failure(self, signal: str, error: Exception) -> None:
        if signal not in self._unreadable:
            self._unreadable.add(signal)
            log.warning("eviction signal %s cannot be read: %s", signal, error)

    def _meminfo_field(self, name: bytes) -> int:
        return meminfo_field(self._meminfo.read(), name)
