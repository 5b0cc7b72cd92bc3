"""Writes a state file that a kubelet reads too: atomically, with many changes in one write.

Its owner decides about content and format. A damaged file is renamed by `checksummed_file.set_aside`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from engine.api.errors import Bug, KubengineError, Refused, Unavailable
from engine.host.checksummed_file import SHORTAGES, read_again, set_aside
from engine.host.files import replacing_file
from engine.host.tasks import RetryTimer, Tasks, WriteSchedule, resolve

STEP_SECONDS = 30.0
"""Seconds after which a write counts as stuck."""
RETRY_SECONDS = 5.0
"""Seconds until a failed write is tried again."""

T = TypeVar("T")
FaultPoint = Callable[[str], None]
"""Called with the name of each step that a crash could follow; tests end the process there."""


def no_fault(step: str) -> None:
    """Do nothing; the fault point outside of tests."""


class StateFile:
    """Write one state file with a background task, `name`.

    `snapshot` gives the content to write. `changed` asks for a write soon, `flush` for one now, and returns
    when what `snapshot` gave at the time of the call is on disk (written, synced, renamed, directory
    synced). Callers that wait at the same time share a write. A content equal to `last` is not written.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], bytes],
        *,
        name: str,
        tasks: Tasks | None = None,
        fault: FaultPoint = no_fault,
    ) -> None:
        self.path = path
        self.writes = 0
        self.last: bytes | None = None
        self._content = snapshot
        self._fault = fault
        self._schedule = WriteSchedule()
        self._waiters: list[asyncio.Future[None]] = []
        self._retry = RetryTimer(RETRY_SECONDS, self._schedule.want)
        self._writer = (tasks or Tasks()).task(name)

    def read(self, decode: Callable[[bytes], T], damaged: Callable[[str], None]) -> T | None:
        """Read the file of an earlier agent; None if there is none, or if it is damaged.

        `decode` raises `ValueError` for invalid content. The file is then set aside, and `damaged` is called
        with the reason. Raises `Unavailable` if the machine lacks the memory or descriptors to read it.
        """
        try:
            text = read_again(self.path)
            found = decode(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise Unavailable(f"cannot be read: {error.strerror}", subject=str(self.path)) from error
            damaged(f"{self.path}: {error}; {set_aside(self.path)}")
            return None
        self.last = text
        return found

    async def start(self) -> None:
        self._writer.start(self._write_when_wanted)

    async def stop(self) -> None:
        """Write what is still unwritten, a write that is under way included, then end. Raises
        `Refused` if it cannot be written."""
        if not self._writer.wanted:
            return
        try:
            await self.flush()
        finally:
            await self._writer.stop()
            self._retry.cancel()
            for waiter in self._waiters:
                resolve(waiter, Refused("its writer has stopped", subject=str(self.path)))

    def changed(self) -> None:
        """Schedule a write of the changed content, without waiting for it."""
        self._schedule.want()

    async def flush(self) -> None:
        """Wait until the present state is on disk. Raises `Refused` if it cannot be written."""
        if not self._writer.wanted:
            raise Refused("its writer has stopped", subject=str(self.path))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._schedule.hurry()
        await waiter

    async def _write_when_wanted(self) -> None:
        while True:
            await self._schedule.due()
            waiters, self._waiters = self._waiters, []
            failure: KubengineError | None = None
            try:
                with self._writer.step(STEP_SECONDS):
                    await self._write()
            except Exception as error:
                self._writer.failed(error)
                failure = error if isinstance(error, Refused) else _unexpected(error, self.path)
                self._retry.start()
            for waiter in waiters:
                resolve(waiter, failure)

    async def _write(self) -> None:
        text = self._content()
        if text == self.last:
            return
        self.last = None  # a write that fails may still have replaced the file
        await asyncio.to_thread(self._replace, text)
        self.writes += 1
        self.last = text

    def _replace(self, text: bytes) -> None:
        with replacing_file(self.path) as file:
            file.write(text)
            self._fault("checkpoint written")
        self._fault("checkpoint renamed")


def _unexpected(error: Exception, path: Path) -> Bug:
    return Bug(f"cannot write: {type(error).__name__}: {error}", subject=str(path))
