"""Processes that aren't children of this one: knowing when they end, and signalling exactly them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from engine.api.errors import Refused
from engine.runtime.shim import linux

KILL_TIMEOUT = 30.0


class Watcher:
    """Watches processes by pidfd, each under the id of the sandbox or container that it belongs to."""

    def __init__(self) -> None:
        self._ended: dict[str, asyncio.Event] = {}
        self._descriptors: set[int] = set()

    def watch(self, identifier: str, pid: int, gone: Callable[[], None]) -> None:
        """Call `gone` once process `pid` has ended."""
        ended = self._ended[identifier] = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(self._on_end, identifier, -1, ended, gone)
            return
        self._descriptors.add(fd)
        loop.add_reader(fd, self._on_end, identifier, fd, ended, gone)

    async def ended(self, identifier: str, timeout: float = KILL_TIMEOUT) -> bool:
        """Whether what is watched as `identifier` has ended, `gone` included, within `timeout` seconds."""
        ended = self._ended.get(identifier)
        if ended is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), timeout)
            return ended.is_set()
        return True

    async def killed(self, identifier: str) -> None:
        """Wait for the end after a SIGKILL. Raises Refused where the kernel can't end it."""
        if not await self.ended(identifier):
            raise Refused(f"still there {KILL_TIMEOUT:g}s after SIGKILL", subject=identifier)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in self._descriptors:
            loop.remove_reader(fd)
            os.close(fd)
        self._descriptors.clear()
        self._ended.clear()

    def _on_end(self, identifier: str, fd: int, ended: asyncio.Event, gone: Callable[[], None]) -> None:
        if fd >= 0:
            asyncio.get_running_loop().remove_reader(fd)
            self._descriptors.discard(fd)
            os.close(fd)
        self._ended.pop(identifier, None)
        try:
            gone()
        finally:
            ended.set()


def lives(pid: int, start_time: int) -> bool:
    """Whether that very process runs, and not a later one of the same number."""
    return pid > 0 and start_time > 0 and linux.start_time(pid) == start_time


def send_signal(pid: int, start_time: int, number: int) -> None:
    """Signal that very process; nothing where it has ended."""
    if pid <= 0:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if lives(pid, start_time):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


async def settled(decided: Callable[[], bool]) -> None:
    """A process that had its go says so in a moment, one that didn't ends; waits 5 s at most."""
    for _ in range(500):
        if decided():
            return
        await asyncio.sleep(0.01)
