"""A deadline for many short waits in turn."""

from __future__ import annotations

import asyncio
from typing import Final

LOOKS: Final = 8
"""How often a wait is looked at before it is over."""


class Patience:
    """Cancels a wait of the task that made it after `seconds`, or up to an eighth later.

    A timer looks now and then whether still the same wait goes on, so that one that ends at once costs next
    to nothing. `begin` is before each wait and ends the one before, `end` after the last; where one was
    cancelled, `ended_it` says whether by us.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._waits = 0
        self._seen = 0
        self._looks = 0
        self._over = False
        self._timer = self._loop.call_later(seconds / LOOKS, self._look)

    def begin(self) -> None:
        self._waits += 1

    def end(self) -> None:
        self._waits = self._seen = 0

    def ended_it(self) -> bool:
        """Whether the wait was cancelled because its time was over, and by nobody else."""
        over, self._over = self._over, False
        return over and self._task is not None and self._task.uncancel() == 0

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self.seconds / LOOKS, self._look)
        if self._waits != self._seen:
            self._seen, self._looks = self._waits, 0
        elif self._waits and self._task is not None:
            self._looks += 1
            if self._looks == LOOKS:
                self._over = True
                self._task.cancel()
