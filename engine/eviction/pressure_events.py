"""Watches cgroup v2: the kernel reports stalls for memory, or that a cgroup's own limit was hit.

A trigger is a text written to `memory.pressure`: so many µs of stall within a window of so many. A process
without CAP_SYS_RESOURCE may only use windows that are multiples of 2 s (EINVAL otherwise), and none at all
before Linux 6.5 (EPERM). Without pressure accounting the file is missing or refuses (EOPNOTSUPP); then
`memory.events.local` remains, which the root cgroup does not have. Unlike `memory.events` it ignores the
limits of cgroups below, so that a pod at its own limit wakes nobody.

Source: the kernel's Documentation/accounting/psi.rst and Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

TRIGGERS: Final = (b"some 150000 1000000\0", b"some 300000 2000000\0")
"""The same share of stall, in the shorter window first. A trigger ends with a zero byte."""
PRESSURE, EVENTS = "memory.pressure", "memory.events.local"

log = logging.getLogger("kubengine.eviction")


class PressureEvents:
    """Watch the cgroup at `directory`.

    `wake` is called on the loop's thread, by a trigger at most once per window. `watched` names the files
    that the kernel lets us wait for.
    """

    def __init__(
        self, directory: Path, wake: Callable[[], None], triggers: Sequence[bytes] = TRIGGERS
    ) -> None:
        self._directory = directory
        self._wake = wake
        self._triggers = triggers
        self._poll: select.epoll | None = None
        self._files: dict[int, str] = {}

    @property
    def watched(self) -> set[str]:
        return set(self._files.values())

    def start(self) -> None:
        self._poll = select.epoll()
        self._watch(PRESSURE, os.O_RDWR | os.O_NONBLOCK, self._set_trigger)
        self._watch(EVENTS, os.O_RDONLY, _read)
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._on_event)

    def arm(self, usages: Iterable[int]) -> None:
        """Do nothing: the kernel measures stall rather than usage."""

    def stop(self) -> None:
        if self._poll is not None:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None
        for descriptor in self._files:
            os.close(descriptor)
        self._files.clear()

    def _watch(self, name: str, flags: int, prepare: Callable[[int], None]) -> None:
        assert self._poll is not None
        path = self._directory / name
        descriptor = -1
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
            prepare(descriptor)
            self._poll.register(descriptor, select.EPOLLPRI)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if error.errno != errno.ENOENT:
                log.info("no memory notification from %s: %s", path, error.strerror)
            return
        self._files[descriptor] = name

    def _set_trigger(self, descriptor: int) -> None:
        """Set a trigger. Raises the `OSError` of the last one if all are refused."""
        *preferred, last = self._triggers
        for trigger in preferred:
            try:
                os.write(descriptor, trigger)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return
        os.write(descriptor, last)

    def _on_event(self) -> None:
        assert self._poll is not None
        reported = [descriptor for descriptor, _events in self._poll.poll(0)]
        if not all(self._continues(descriptor) for descriptor in reported):
            # Linux 6.1 reports through `memory.pressure` alone that a cgroup is gone.
            for descriptor in list(self._files):
                self._continues(descriptor)
        self._wake()

    def _continues(self, descriptor: int) -> bool:
        """Read a file, and stop watching it if its cgroup is gone, which it would report forever."""
        assert self._poll is not None
        try:
            _read(descriptor)
        except OSError as error:
            name = self._files.pop(descriptor)
            log.info("memory notifications from %s have ended: %s", self._directory / name, error.strerror)
            self._poll.unregister(descriptor)
            os.close(descriptor)
            return False
        return True


def _read(descriptor: int) -> None:
    """Read the file, after which only the next change is an event."""
    os.pread(descriptor, 4096, 0)
