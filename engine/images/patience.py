"""A deadline for many short waits in turn."""

from __future__ import annotations

import asyncio
from math import inf


class Patience:
    """Cancels a wait of the task that began it after `seconds`, as `asyncio.timeout` does.

    One timer serves all the waits of a row, so that a wait that ends at once costs next to nothing. `begin`
    and `end` are around each; where it was cancelled, `ended_it` says whether by us.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._until = inf
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def begin(self) -> None:
        self._until = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._look)

    def end(self) -> None:
        self._until = inf

    def ended_it(self) -> bool:
        """Whether the wait was cancelled because its time was over, and by nobody else."""
        over, self._over = self._over, False
        return over and self._task is not None and self._task.uncancel() == 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() < self._until < inf:
            self._timer = self._loop.call_at(self._until, self._look)
        elif self._until < inf and self._task is not None:
            self._over = True
            self._task.cancel()
