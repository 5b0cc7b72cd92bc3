"""A measure of who holds the event loop, that is the same on every machine: calls in each of its turns."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

_TURN = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
_BEGINS = ("call", "c_call")


class TurnGauge:
    """Counts the turns of this thread's event loop, and the calls of functions in the longest of them."""

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
