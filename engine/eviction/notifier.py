"""Wakes the eviction manager when the kernel sees memory run short, instead of at its next look.

cgroup v1: an eventfd that fires when a cgroup's usage crosses a number of bytes. cgroup v2: a pressure
stall trigger (150 ms of stall within 1 s) where the kernel has them, and `memory.events`, which changes
when a limit is hit. Where neither is there the manager's interval is all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from engine.api.errors import KubengineError
from engine.eviction.cgroup_usage import CGROUP_MOUNT, is_v1, memory_directory
from engine.eviction.readings import SignalReader
from engine.eviction.signals import ALLOCATABLE_MEMORY_AVAILABLE, MEMORY_AVAILABLE, Observations
from engine.eviction.thresholds import Threshold

PRESSURE_TRIGGER: Final = b"some 150000 1000000\0"
RE_ARM_BEYOND: Final = 1 << 20
"""A v1 threshold follows the page cache only when it has moved by this many bytes."""

log = logging.getLogger("kubengine.eviction")


class MemoryNotifier:
    """Watches one cgroup. `wake` is called on the loop's thread."""

    def __init__(self, cgroup: str, wake: Callable[[], None], mount: Path = CGROUP_MOUNT) -> None:
        self._directory = memory_directory(mount, cgroup)
        self._wake = wake
        self._v1 = is_v1(mount)
        self._armed: dict[int, int] = {}
        self._poll: select.epoll | None = None
        self._descriptors: list[int] = []

    @property
    def active(self) -> bool:
        return bool(self._armed or self._descriptors)

    def start(self) -> None:
        """Begin where the kernel offers it; v1 waits for `arm`."""
        if self._v1:
            return
        self._poll = select.epoll()
        self._watch("memory.pressure", os.O_RDWR | os.O_NONBLOCK, PRESSURE_TRIGGER)
        self._watch("memory.events", os.O_RDONLY, None)
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._on_event)

    def arm(self, usages: set[int]) -> None:
        """v1: fire when the cgroup's usage crosses any of these numbers of bytes. Cheap when they are
        what is armed already, give or take a MiB."""
        if not self._v1:
            return
        for armed in list(self._armed):
            if not any(abs(usage - armed) <= RE_ARM_BEYOND for usage in usages):
                self._disarm(armed)
        for usage in usages:
            if usage > 0 and not any(abs(usage - armed) <= RE_ARM_BEYOND for armed in self._armed):
                self._arm(usage)

    def stop(self) -> None:
        for usage in list(self._armed):
            self._disarm(usage)
        if self._poll is not None:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _arm(self, usage: int) -> None:
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            watched = os.open(self._directory / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            try:
                with (self._directory / "cgroup.event_control").open("wb", buffering=0) as control:
                    control.write(b"%d %d %d" % (event, watched, usage))
            finally:
                os.close(watched)
        except OSError as error:
            os.close(event)
            log.warning("no memory notification at %d bytes of %s: %s", usage, self._directory, error)
            return
        self._armed[usage] = event
        asyncio.get_running_loop().add_reader(event, self._on_crossing, event)

    def _disarm(self, usage: int) -> None:
        event = self._armed.pop(usage)
        asyncio.get_running_loop().remove_reader(event)
        os.close(event)

    def _on_crossing(self, event: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(event)
            self._wake()

    def _watch(self, name: str, flags: int, trigger: bytes | None) -> None:
        assert self._poll is not None
        try:
            descriptor = os.open(self._directory / name, flags | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if trigger is not None:
                os.write(descriptor, trigger)
            else:
                os.pread(descriptor, 4096, 0)
            self._poll.register(descriptor, select.EPOLLPRI)
        except OSError as error:
            log.info("no memory notification from %s: %s", self._directory / name, error)
            os.close(descriptor)
            return
        self._descriptors.append(descriptor)

    def _on_event(self) -> None:
        assert self._poll is not None
        for descriptor, _events in self._poll.poll(0):
            with contextlib.suppress(OSError):
                os.pread(descriptor, 4096, 0)
        self._wake()


class MemoryNotifiers:
    """The watched cgroups of one node: its own, and that of all pods, where thresholds name them."""

    def __init__(
        self, reader: SignalReader, thresholds: Sequence[Threshold], wake: Callable[[], None]
    ) -> None:
        self._reader, self._wake = reader, wake
        self._thresholds = {
            signal: [threshold for threshold in thresholds if threshold.signal == signal]
            for signal in (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY_AVAILABLE)
        }
        self._notifiers: dict[str, MemoryNotifier] = {}

    def start(self) -> None:
        view = self._reader.view
        watched = {MEMORY_AVAILABLE: view.cgroup, ALLOCATABLE_MEMORY_AVAILABLE: view.pods_cgroup}
        for signal, cgroup in watched.items():
            if cgroup is not None and self._thresholds[signal]:
                self._notifiers[signal] = MemoryNotifier(cgroup, self._wake, view.mount)
                self._notifiers[signal].start()

    def stop(self) -> None:
        for notifier in self._notifiers.values():
            notifier.stop()
        self._notifiers.clear()

    def arm(self, observations: Observations) -> None:
        """Let v1 notifications follow the page cache: they count usage, thresholds the working set."""
        for signal, notifier in self._notifiers.items():
            observed = observations.get(signal)
            group = self._reader.node if signal == MEMORY_AVAILABLE else self._reader.pods
            if observed is None or group is None:
                continue
            try:
                cache = group.inactive_file()
            except (OSError, KubengineError):
                continue
            used = observed.capacity + cache
            notifier.arm({used - t.limit(observed.capacity) for t in self._thresholds[signal]})
