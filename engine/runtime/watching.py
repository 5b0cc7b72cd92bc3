"""Watch processes that are not children of this one, and signal exactly them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import NamedTuple

from engine.api.errors import Refused
from engine.runtime.shim import linux

KILL_ATTEMPTS = 30
SETTLING_SECONDS = 60.0


class _Watched(NamedTuple):
    descriptor: int
    ended: asyncio.Event
    gone: Callable[[], None]


class Watcher:
    """Watch processes by pidfd, each under the id of its sandbox or container."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def watch(self, identifier: str, pid: int, gone: Callable[[], None]) -> None:
        """Call `gone` once process `pid` has ended."""
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._watched[identifier] = _Watched(-1, asyncio.Event(), gone)
            # Not at once: the caller does not expect the end within `watch`.
            loop.call_soon(self._on_end, identifier)
            return
        self._watched[identifier] = _Watched(descriptor, asyncio.Event(), gone)
        loop.add_reader(descriptor, self._on_end, identifier)

    async def ended(self, identifier: str, timeout: float) -> bool:
        """Tell whether the process watched as `identifier` has ended, with `gone` called, within `timeout`
        seconds.
        """
        watched = self._watched.get(identifier)
        if watched is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await watched.ended.wait()
            return watched.ended.is_set()
        return True

    async def kill(self, identifier: str, pid: int, start_time: int) -> None:
        """Send SIGKILL to that process until the process watched as `identifier` has ended.

        Raise Refused if the kernel does not end it in time.
        """
        for _ in range(KILL_ATTEMPTS):
            send_signal(pid, start_time, signal.SIGKILL)
            if await self.ended(identifier, 1.0):
                return
            watched = self._watched.get(identifier)
            # On a starved machine the loop may not have come to the descriptor yet, although the process has
            # ended.
            if watched is not None and select.select([watched.descriptor], [], [], 0)[0]:
                self._on_end(identifier)
                return
        raise Refused(f"process {pid} is still there {KILL_ATTEMPTS} s after SIGKILL", subject=identifier)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for watched in self._watched.values():
            if watched.descriptor >= 0:
                loop.remove_reader(watched.descriptor)
                os.close(watched.descriptor)
        self._watched.clear()

    def _on_end(self, identifier: str) -> None:
        watched = self._watched.pop(identifier, None)
        if watched is None:
            return
        if watched.descriptor >= 0:
            asyncio.get_running_loop().remove_reader(watched.descriptor)
            os.close(watched.descriptor)
        try:
            watched.gone()
        finally:
            # After `gone`, even if it raises: whoever waits for the end sees the record of it.
            watched.ended.set()


def lives(pid: int, start_time: int) -> bool:
    """Tell whether exactly this process runs, and not a later one with the same number."""
    return pid > 0 and start_time > 0 and linux.start_time(pid) == start_time


def send_signal(pid: int, start_time: int, number: int) -> None:
    """Signal exactly this process; do nothing if it has ended."""
    if pid <= 0:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Checked after the pidfd was opened: from here on the number cannot come to mean another process.
        if lives(pid, start_time):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a process either confirms that it was allowed to continue or ends, which may take time on a
    starved machine.

    Waits `SETTLING_SECONDS` at most, in case the process is stopped.
    """
    for _ in range(int(SETTLING_SECONDS / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
