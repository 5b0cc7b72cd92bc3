"""Watches cgroup v1: an eventfd fires when a cgroup's memory usage crosses a number of bytes.

Source: the kernel's Documentation/admin-guide/cgroup-v1/memory.rst, section 9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

RE_ARM_BEYOND: Final = 1 << 20
"""A threshold follows the page cache only when that has moved by this many bytes."""

log = logging.getLogger("kubengine.eviction")


class UsageEvents:
    """Watch the cgroup at `directory`. `wake` is called on the loop's thread."""

    def __init__(self, directory: Path, wake: Callable[[], None]) -> None:
        self._directory = directory
        self._wake = wake
        self._armed: dict[int, int] = {}
        self._refusal = ""

    def start(self) -> None:
        """Do nothing; `arm` sets what is watched."""

    def arm(self, usages: Iterable[int]) -> None:
        """Fire when the cgroup's usage crosses any of these numbers of bytes.

        Cheap if they are what is set already, give or take a MiB.
        """
        wanted = {usage for usage in usages if usage > 0}
        for armed in list(self._armed):
            if not any(abs(usage - armed) <= RE_ARM_BEYOND for usage in wanted):
                self._disarm(armed)
        for usage in wanted:
            if not any(abs(usage - armed) <= RE_ARM_BEYOND for armed in self._armed):
                self._arm(usage)

    def stop(self) -> None:
        for usage in list(self._armed):
            self._disarm(usage)

    def _arm(self, usage: int) -> None:
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            watched = os.open(self._directory / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            try:
                with (self._directory / "cgroup.event_control").open("wb", buffering=0) as control:
                    # The kernel keeps its own references: the descriptor of the file may be closed
                    # afterwards.
                    control.write(b"%d %d %d" % (event, watched, usage))
            finally:
                os.close(watched)
        except OSError as error:
            os.close(event)
            if str(error) != self._refusal:
                self._refusal = str(error)
                log.warning("no memory notification at %d bytes of %s: %s", usage, self._directory, error)
            return
        self._armed[usage], self._refusal = event, ""
        asyncio.get_running_loop().add_reader(event, self._on_crossing, event)

    def _disarm(self, usage: int) -> None:
        event = self._armed.pop(usage)
        asyncio.get_running_loop().remove_reader(event)
        os.close(event)

    def _on_crossing(self, event: int) -> None:
        # Another callback of the same turn of the loop may have read the event already.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(event)
            self._wake()
