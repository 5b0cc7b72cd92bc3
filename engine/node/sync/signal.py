"""Wakes one sleeper: an event without a queue, and a time-out without a task.

Thousands of pod workers sleep most of the time, so the object that each sleeps on must cost next to nothing.
"""

from __future__ import annotations

import asyncio


class Signal:
    """An event for one waiter; `ring`, before or during `wait`, ends the wait."""

    __slots__ = ("_rung", "_sleeper")

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        self._end(self._sleeper)

    def silence(self) -> None:
        """Clear the signal."""
        self._rung = False

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the signal is set or the time has passed; return at once if it is already set."""
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
