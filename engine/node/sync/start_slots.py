"""Limits how many pods start at once; a pod gives its slot back while it waits for something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType


class StartSlot:
    """Hold one of the slots of `limit`: `async with StartSlot(limit, publish) as slot:`.

    Call `give_back` before something slow and `take` before you continue; both may be repeated. `pause` also
    publishes the pod's status, which is worth a report of its own only if the start takes long.
    """

    __slots__ = ("_held", "_limit", "_publish")

    def __init__(self, limit: asyncio.Semaphore, publish: Callable[[], Awaitable[None]]) -> None:
        self._limit = limit
        self._publish = publish
        self._held = False

    async def pause(self) -> None:
        """Give the slot back before something that may take minutes, and publish the status so far."""
        self.give_back()
        await self._publish()

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
