"""Provides a cheap deadline for many short waits in a row."""

from __future__ import annotations

import asyncio
from typing import Final

LOOKS: Final = 8
"""Fraction of the deadline after which a wait is checked."""


class Patience:
    """Cancel a wait of the creating task after `seconds`, or up to an eighth later.

    A timer checks now and then whether the same wait is still running, so that a short wait costs next to
    nothing. Call `begin` before each wait, which ends the one before, and `end` after the last; after a
    cancellation, `ended_it` tells whether it was ours.
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
        """Return whether this deadline, and nothing else, cancelled the wait."""
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
