"""Limits the share of the event loop that outside peers take: peers wait for each other, not the agent.

A coroutine that reads from a full buffer and writes to an empty one never suspends, however often it awaits.
Code that serves a peer therefore asks for a turn before each bounded step.
"""

from __future__ import annotations

import asyncio
from collections import deque


class LoopShare:
    """Let at most `most` steps begin in one turn of the event loop, first come first served."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def turn(self) -> None:
        """Return in a later turn of the loop, once every earlier caller has had its own."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._serve, loop)
        await mine

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        served = 0
        while self._waiting and served < self._most:
            mine = self._waiting.popleft()
            # A caller that was cancelled while it waited does not use up a turn.
            if not mine.done():
                mine.set_result(None)
                served += 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            loop.call_soon(self._serve, loop)
