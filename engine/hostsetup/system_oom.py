"""Watches the kernel's messages for system-wide OOM kills: the node event SystemOOM."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

from engine.api.events import WARNING, EventRecorder
from engine.hostsetup.oom_kills import OomKill, OomKills, message_of

MOST_RECORD: Final = 8192
RECORDS_AT_ONCE: Final = 64
"""The number of records to read before other tasks get their turn."""

log = logging.getLogger("kubengine.hostsetup")


class SystemOom:
    """Records an event for each system-wide OOM kill after `start`.

    Each read of `kmsg` (/dev/kmsg) returns one record. If it cannot be opened, that is logged once.
    """

    def __init__(self, recorder: EventRecorder, kmsg: Path) -> None:
        self._recorder = recorder
        self._kmsg = kmsg
        self._kills = OomKills()
        self._descriptor: int | None = None

    async def start(self) -> None:
        try:
            descriptor = os.open(self._kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.lseek(descriptor, 0, os.SEEK_END)
                self.follow(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            log.warning("%s: %s; system OOM kills are not reported", self._kmsg, error.strerror)

    def follow(self, descriptor: int) -> None:
        """Read records from a non-blocking descriptor, and close it in the end."""
        asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)
        self._descriptor = descriptor

    async def stop(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _read(self, descriptor: int) -> None:
        for _ in range(RECORDS_AT_ONCE):
            try:
                record = os.read(descriptor, MOST_RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # EPIPE: the kernel overwrote records before they were read
            except OSError as error:
                record = b""
                log.warning("%s: %s; system OOM kills are no longer reported", self._kmsg, error.strerror)
            if not record:
                asyncio.get_running_loop().remove_reader(descriptor)
                return
            kill = self._kills.read(message_of(record))
            if kill is not None and kill.of_the_system:
                self._report(kill)

    def _report(self, kill: OomKill) -> None:
        text = f"System OOM encountered, victim process: {kill.process}, pid: {kill.pid}"
        self._recorder.node(WARNING, "SystemOOM", text)
