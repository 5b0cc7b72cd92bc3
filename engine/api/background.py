"""The task that a manager runs beside everything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("kubengine")


class BackgroundTask:
    """Runs a coroutine from `start` to `stop`. One that ends by an error says so when it happens."""

    __slots__ = ("_name", "_task")

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work, name=self._name)
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancels it and waits for its end; may be called twice, and before `start`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s ended", self._name, exc_info=error)
