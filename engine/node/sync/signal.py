"""A wake-up for one sleeper: an event without a queue and a time limit without a task.

Thousands of pod workers sleep most of their lives; what they sleep on should cost next to nothing.
"""

from __future__ import annotations

import asyncio


class Signal:
    """`ring` before or during `wait` ends it."""

    __slots__ = ("_rung", "_sleeper")

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        self._end(self._sleeper)

    def silence(self) -> None:
        """Forget that it was rung."""
        self._rung = False

    async def wait(self, seconds: float | None = None) -> None:
        """Returns when rung, at once if it was already, or after the time."""
        if self._rung:
            return
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(seconds, self._end, self._sleeper) if seconds is not None else None
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()

    @staticmethod
    def _end(sleeper: asyncio.Future[None] | None) -> None:
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)
