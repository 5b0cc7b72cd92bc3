"""The checkpoint on disk: read at start, written atomically, many changes in one write.

A file that cannot be trusted is moved aside, never deleted: into `set-aside/`, since both the kubelet and
Kubengine clear the plugin directory of all other files when they start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from engine.api.errors import Bug, KubengineError, Refused, Unavailable
from engine.devices.checkpoint import Checkpoint, decode, encode
from engine.host.checksummed_file import SHORTAGES, read_again
from engine.host.files import replacing_file
from engine.host.tasks import Tasks

FILE_NAME = "kubelet_internal_checkpoint"
SET_ASIDE = "set-aside"
STEP_SECONDS = 30.0
"""A write that takes longer is stuck."""
RETRY_SECONDS = 5.0
"""How soon a write that failed is tried again by itself."""
COALESCE_SECONDS = 0.05
"""How long a change that nobody waits for may wait for others."""

log = logging.getLogger("kubengine.devices")

FaultPoint = Callable[[str], None]
"""Told the name of each step that a crash could follow; tests end the process there."""


def no_fault(step: str) -> None:
    """The fault point outside tests."""


class CheckpointFile:
    """One checkpoint file and its writer.

    `snapshot` gives what to write. `changed` asks for a write soon, `flush` for one now, and returns
    when what `snapshot` said at the time of the call is on disk (written, synced, renamed, directory
    synced). Callers that wait at the same time share a write.
    """

    def __init__(
        self,
        directory: Path,
        snapshot: Callable[[], Checkpoint],
        *,
        tasks: Tasks | None = None,
        fault: FaultPoint = no_fault,
    ) -> None:
        self.path = directory / FILE_NAME
        self.writes = 0
        self._snapshot = snapshot
        self._fault = fault
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._writer = (tasks or Tasks()).task("device-checkpoint")
        self._last: bytes | None = None

    def load(self, now: float) -> Checkpoint:
        """What the file says; empty if there is none or if it had to be set aside.

        Raises `Unavailable` where the machine is short of what it takes to read; the file is well then.
        """
        try:
            text = read_again(self.path)
            checkpoint = decode(text)
        except FileNotFoundError:
            return Checkpoint()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise Unavailable(f"cannot be read: {error.strerror}", subject=str(self.path)) from error
            where = self._set_aside(now)
            said = "%s: %s; %s. Devices of running pods are not known to be in use."
            log.error(said, self.path, error, where)
            return Checkpoint()
        self._last = text
        return checkpoint

    def _set_aside(self, now: float) -> str:
        aside = self.path.parent / SET_ASIDE / f"{FILE_NAME}.{int(now)}"
        try:
            aside.parent.mkdir(mode=0o750, exist_ok=True)
            self.path.rename(aside)
        except OSError as error:
            return f"it cannot be set aside ({error.strerror or error})"
        return f"set aside as {aside}"

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
            _tell(self._waiters, Refused("its writer has stopped", subject=str(self.path)))

    def changed(self) -> None:
        """Something that the file says has changed and nobody waits for it."""
        self._wanted.set()

    async def flush(self) -> None:
        """Wait until the present state is on disk. Raises `Refused` if it cannot be written."""
        if not self._writer.wanted:
            raise Refused("its writer has stopped", subject=str(self.path))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._hurry.set()
        self._wanted.set()
        await waiter

    async def _write_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._waiters:
                try:
                    async with asyncio.timeout(COALESCE_SECONDS):
                        await self._hurry.wait()
                except TimeoutError:
                    pass
            self._wanted.clear()
            self._hurry.clear()
            waiters, self._waiters = self._waiters, []
            failure: KubengineError | None = None
            try:
                with self._writer.step(STEP_SECONDS):
                    await self._write()
            except Exception as error:
                self._writer.failed(error)
                failure = error if isinstance(error, Refused) else _unexpected(error, self.path)
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wanted.set)
            _tell(waiters, failure)

    async def _write(self) -> None:
        text = encode(self._snapshot())
        if text == self._last:
            return
        await asyncio.to_thread(self._replace, text)
        self.writes += 1
        self._last = text

    def _replace(self, text: bytes) -> None:
        with replacing_file(self.path) as file:
            file.write(text)
            self._fault("checkpoint written")
        self._fault("checkpoint renamed")


def _unexpected(error: Exception, path: Path) -> Bug:
    return Bug(f"cannot write: {type(error).__name__}: {error}", subject=str(path))


def _tell(waiters: list[asyncio.Future[None]], failure: KubengineError | None) -> None:
    for waiter in waiters:
        if not waiter.done():
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(failure)
