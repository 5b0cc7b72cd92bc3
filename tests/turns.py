"""Measure the work in each turn of the event loop, in counts that are equal on every machine."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

_TURN = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
_BEGINS = ("call", "c_call")


async def take_turns(count: int) -> None:
    """Let the event loop take some turns, however long each takes."""
    for _ in range(count):
        await asyncio.sleep(0)


class TurnGauge:
    """Count the turns of this thread's event loop, and the function calls in the longest of them."""

    def __init__(self) -> None:
        self.turns = 0
        self.most = 0
        self._calls = 0

    def __enter__(self) -> TurnGauge:
        sys.setprofile(self._heed)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _heed(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is _TURN:
            self.turns += 1
            self._calls = 0
        elif event in _BEGINS:
            self._calls += 1
            self.most = max(self.most, self._calls)


class TurnMeter:
    """Sum the amounts passed to `add` in each turn of the running loop; `most` is the largest sum."""

    def __init__(self) -> None:
        self.most = self.total = 0
        self._now = 0
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> TurnMeter:
        self._next()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()

    def add(self, amount: int = 1) -> None:
        self._now += amount
        self.total += amount
        self.most = max(self.most, self._now)

    def _next(self) -> None:
        self._now = 0
        self._handle = asyncio.get_running_loop().call_soon(self._next)
