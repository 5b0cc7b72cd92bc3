"""Watches the kernel's messages for system-wide OOM kills: the node event SystemOOM.

Source: kubelet v1.36 (`oom_watcher_linux.go`, cadvisor's `oomparser`): a kill counts as the system's unless
the limit of a memory cgroup caused it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from engine.api.events import WARNING, EventRecorder

MOST_RECORD: Final = 8192
RECORDS_AT_ONCE: Final = 64
"""The number of records to read before other tasks get their turn."""

log = logging.getLogger("kubengine.hostsetup")
_BEGINS: Final = "invoked oom-killer:"
_BY_LIMIT: Final = re.compile(r"oom-kill:constraint=.*,oom_memcg=(.*),task_memcg=.*,task=(.*),pid=(\d+),uid=")
_BY_LIMIT_BEFORE_5_0: Final = re.compile(r"Task in .* killed as a result of limit of (.*)")
_KILLED: Final = re.compile(r"Killed process (\d+) \((.+)\)")


class SystemOom:
    """Record an event for each system-wide OOM kill after `start`.

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
                # Otherwise every kill since boot would be reported at each start.
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


class OomKill(msgspec.Struct, frozen=True):
    """Describe a kill. `cgroup` is the group whose limit was reached, "/" for the machine's memory."""

    process: str
    pid: int
    cgroup: str

    @property
    def of_the_system(self) -> bool:
        return self.cgroup == "/"


class OomKills:
    """Assemble kills from kernel messages; each kill spans several messages."""

    def __init__(self) -> None:
        self._cgroup: str | None = None

    def read(self, message: str) -> OomKill | None:
        """Return the kill that ends with this message (without its prefix), or None."""
        # Kernels before 5.0 name the limit in a message of its own; without one, the machine's memory ran
        # out.
        if _BEGINS in message:
            self._cgroup = "/"
            return None
        if self._cgroup is None:
            return None
        if found := _BY_LIMIT.search(message):
            return self._ended(OomKill(found[2], int(found[3]), found[1]))
        if found := _BY_LIMIT_BEFORE_5_0.search(message):
            self._cgroup = "/" + found[1].strip("/")
        elif found := _KILLED.search(message):
            return self._ended(OomKill(found[2], int(found[1]), self._cgroup))
        return None

    def _ended(self, kill: OomKill) -> OomKill:
        self._cgroup = None
        return kill


def message_of(record: bytes) -> str:
    """Return the text of a record of /dev/kmsg (`PRIORITY,SEQUENCE,TIME,-;TEXT`), without its continuation
    lines.
    """
    return record.partition(b";")[2].partition(b"\n")[0].decode(errors="replace")
