"""Waiting for what comes true sooner or later. The limit ends what hangs; no machine is too slow for it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0
"""Seconds; below pytest's own time limit, so that a failure says what did not come true."""


async def eventually(condition: Callable[[], Any], seconds: float = PATIENCE, *, every: float = 0.01) -> None:
    """Wait until a condition, which may be a coroutine function, holds."""
    deadline = time.monotonic() + seconds
    while True:
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return
        assert time.monotonic() < deadline, _missed(condition, seconds)
        await asyncio.sleep(every)


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """The same outside of a loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, _missed(condition, seconds)
        time.sleep(0.02)


def _missed(condition: Callable[[], Any], seconds: float) -> str:
    code = getattr(condition, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(condition)
    return f"not within {seconds:g} s: {where}"
