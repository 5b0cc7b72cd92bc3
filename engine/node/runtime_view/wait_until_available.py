"""Repeats calls that fail while the machine starts: the runtime may be late, descriptors may be short."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.api.errors import Unavailable

WAIT_SECONDS = 30.0
PAUSE_SECONDS = 0.2

T = TypeVar("T")

log = logging.getLogger("kubengine.node")


async def wait_until_available(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` until it no longer raises `Unavailable`, and return its result.

    Used for calls to a runtime that starts at the same time as the agent, and for the record file, which the
    machine may lack descriptors to open. Raises `Unavailable` if `call` still does after 30 s; other errors
    are raised at once.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    logged = False
    while True:
        try:
            return await call()
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise
            if not logged:
                log.warning("%s; waiting for it up to %g s", error, WAIT_SECONDS)
            logged = True
            await asyncio.sleep(PAUSE_SECONDS)
