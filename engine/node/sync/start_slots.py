"""Limits how many pods start at once; a pod gives its slot back while it waits for something else."""

from __future__ import annotations

import asyncio
from types import TracebackType


class StartSlot:
    """Hold one of the slots of `limit`: `async with StartSlot(limit) as slot:`.

    Call `give_back` before something slow and `take` before you continue; both may be repeated.
    """

    __slots__ = ("_held", "_limit")

    def __init__(self, limit: asyncio.Semaphore) -> None:
        self._limit = limit
        self._held = False

    async def take(self) -> None:
        if not self._held:
            await self._limit.acquire()
            self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._limit.release()

    async def __aenter__(self) -> StartSlot:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
