"""Wait for conditions. The limit only ends what hangs, however slow the machine is."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0
"""Seconds; below the time limit of pytest, so that a failure names the condition."""


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
    """Wait until a condition holds, without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, _missed(condition, seconds)
        time.sleep(0.02)


def _missed(condition: Callable[[], Any], seconds: float) -> str:
    code = getattr(condition, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(condition)
    return f"not within {seconds:g} s: {where}"
