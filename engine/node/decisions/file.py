"""Writes decisions to a file of JSON lines, for users who keep them longer than the agent does.

Lines are appended outside of the event loop, several in one write. Lines that could not be written are tried
again with the next decision, as long as the ring buffer holds them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from errno import EINVAL
from itertools import count
from pathlib import Path

from engine.api.decisions import Decision, Decisions
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import DecisionsSection
from engine.api.struct import to_json
from engine.host.tasks import Tasks

# O_NONBLOCK: opening a FIFO would wait for its reader. O_NOFOLLOW: the agent is root, and a link may lead
# anywhere.
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE = 0o600

log = logging.getLogger("kubengine.decisions")


class DecisionFile:
    """Write `section.file` and rotate it to `file.1`, `file.2` and so on.

    Raises `InvalidInput` for limits that limit nothing.
    """

    def __init__(self, section: DecisionsSection, decisions: Decisions, tasks: Tasks) -> None:
        if section.max_size.value < 1:
            raise InvalidInput(f"expected more than 0, got {section.max_size}", subject="decisions.maxSize")
        if section.max_files < 1:
            raise InvalidInput(f"expected 1 or more, got {section.max_files}", subject="decisions.maxFiles")
        self._path = Path(section.file)
        self._most_bytes, self._most_files = section.max_size.value, section.max_files
        self._decisions = decisions
        self._task = tasks.task("decision-file")
        self._writing = threading.Lock()
        self._written = 0
        self._trouble = ""

    async def start(self) -> None:
        self._task.start(self._follow)

    async def stop(self) -> None:
        """Write pending decisions, then stop."""
        # First the task, which may be writing; `_append` leaves out what a cancelled write has still written.
        await self._task.stop()
        await self._write(self._decisions.after(self._written))

    async def _follow(self) -> None:
        seen = self._written
        while True:
            seen = (await self._decisions.news(seen))[-1].number
            await self._write(self._decisions.after(self._written))

    async def _write(self, decisions: Sequence[Decision]) -> None:
        if not decisions:
            return
        try:
            await asyncio.to_thread(self._append, decisions)
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self._trouble:
                log.warning("%s: decisions cannot be written: %s", self._path, trouble)
            self._trouble = trouble
        else:
            if self._trouble:
                log.info("%s: writing decisions succeeds again", self._path)
            self._trouble = ""

    def _append(self, decisions: Sequence[Decision]) -> None:
        """Append pending lines, except those that a write that was given up has appended meanwhile."""
        with self._writing:
            left = [decision for decision in decisions if decision.number > self._written]
            lines = [to_json(decision) + b"\n" for decision in left]
            at = 0
            while at < len(lines):
                end = self._append_some(lines, at)
                if end == at:
                    self._rotate()
                else:
                    at = end
                    self._written = left[at - 1].number

    def _append_some(self, lines: Sequence[bytes], at: int) -> int:
        """Append lines from `at` on while they fit, at least one to an empty file; return where it
        stopped.
        """
        descriptor = os.open(self._path, _OPEN, _MODE)
        try:
            size = _check(descriptor)
            # A crash may have cut the last line off; what follows must not be glued to it.
            torn = bool(size) and os.pread(descriptor, 1, size - 1) != b"\n"
            data, end = b"\n" if torn else b"", at
            while end < len(lines) and (
                size + len(data) + len(lines[end]) <= self._most_bytes or (not size and end == at)
            ):
                data += lines[end]
                end += 1
            if end > at:
                _write_whole(descriptor, data, size)
            return end
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        # From the oldest on, so that each renamed file replaces the one that is dropped.
        for number in range(self._most_files - 1, 0, -1):
            with suppress(FileNotFoundError):
                (self._numbered(number - 1) if number > 1 else self._path).replace(self._numbered(number))
        if self._most_files == 1:
            self._path.unlink()
        # Files beyond a limit that was larger once; the first gap ends them.
        with suppress(FileNotFoundError):
            for number in count(self._most_files):
                self._numbered(number).unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _check(descriptor: int) -> int:
    """Return the size of the file. Checks that only its owner may read it."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(EINVAL, "it is not a regular file")
    if stat.S_IMODE(about.st_mode) != _MODE:
        os.fchmod(descriptor, _MODE)
    return about.st_size


def _write_whole(descriptor: int, data: bytes, size: int) -> None:
    """Write all of the data or none of it."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
