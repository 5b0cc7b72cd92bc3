"""Waits for a runtime that starts, or restarts, at the same time as the agent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.api.errors import Unavailable

RUNTIME_WAIT_SECONDS = 30.0
PAUSE_SECONDS = 0.2

T = TypeVar("T")

log = logging.getLogger("kubengine.node")


async def wait_for_runtime(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` until the runtime answers, and return its result.

    The agent's records are opened in the same way: the machine may lack descriptors for a moment.
    Raises `Unavailable` if `call` still does after 30 s; other errors are raised at once.
    """
    deadline = time.monotonic() + RUNTIME_WAIT_SECONDS
    said = False
    while True:
        try:
            return await call()
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise
            if not said:
                log.warning("%s; waiting for it up to %g s", error, RUNTIME_WAIT_SECONDS)
            said = True
            await asyncio.sleep(PAUSE_SECONDS)
