"""A file of the kubelet's that this package keeps: read at the start, written for all who wait at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from engine.api.errors import Unavailable
from engine.host.checksummed_file import SHORTAGES, read_again, set_aside
from engine.host.files import replace_file

log = logging.getLogger("kubengine.dra")

FaultPoint = Callable[[str], None]
"""Told the name of each step that a crash could follow; tests end the process there."""


def no_fault(step: str) -> None:
    """The fault point outside tests."""


class StateFile:
    """The file at `path`, which says what `encode` gives."""

    def __init__(self, path: Path, encode: Callable[[], bytes], fault: FaultPoint = no_fault) -> None:
        self.path = path
        self._encode = encode
        self._fault = fault
        self._turn = asyncio.Lock()
        self._wanted = self._written = 0
        self._last: bytes | None = None

    def load(self, restore: Callable[[bytes], None], without: str) -> bool:
        """Give `restore` the content, if there is any. False for a file that cannot be trusted: it is set
        aside, and the log says what is done `without` it.

        Raises `Unavailable` where the machine is short of what it takes to read; the file is well then.
        """
        try:
            text = read_again(self.path)
            restore(text)
        except FileNotFoundError:
            return True
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise Unavailable(f"cannot be read: {error.strerror}", subject=str(self.path)) from error
            log.error("%s: %s; %s; %s", self.path, error, set_aside(self.path), without)
            return False
        self._last = text
        return True

    async def keep(self, *, durable: bool = True) -> None:
        """Returns when the present state is written. Raises `Refused` with the path."""
        self._wanted += 1
        wanted = self._wanted
        async with self._turn:
            if self._written >= wanted:
                return  # whoever had the turn wrote for this caller too
            now, text = self._wanted, self._encode()
            if text != self._last:
                await asyncio.to_thread(replace_file, self.path, text, durable=durable)
                self._last = text
            self._written = now
        self._fault("state written")
