"""`kubengine run --live` on a terminal whose size changes."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from engine.cli.output import live_view
from engine.cli.output.live_view import LiveView
from tests.waiting import eventually

CLEAR = "\x1b[2J"


class Terminal(Console):
    """Represent a terminal that becomes narrower after its size was read three times."""

    def __init__(self, **_: Any) -> None:
        super().__init__(file=io.StringIO(), force_terminal=True)
        self.reads = 0

    @property
    def size(self) -> ConsoleDimensions:
        self.reads += 1
        return ConsoleDimensions(100 if self.reads <= 3 else 60, 25)


async def test_a_terminal_that_changes_its_size_is_drawn_from_the_top(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Terminal] = []

    def terminal(**options: Any) -> Terminal:
        made.append(Terminal(**options))
        return made[-1]

    view = LiveView(leave="")
    monkeypatch.setattr(live_view, "Console", terminal)
    monkeypatch.setattr(live_view, "PERIOD", 0.01)
    monkeypatch.setattr(view, "_picture", lambda node: Text("header"))
    node: Any = SimpleNamespace(recorder=SimpleNamespace(listen=lambda listener: None))
    showing = asyncio.ensure_future(view.show(node))
    await asyncio.sleep(0)
    (console,) = made
    await eventually(lambda: console.reads > 40)
    showing.cancel()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.count(CLEAR) == 1
    assert "header" in written.partition(CLEAR)[2]
