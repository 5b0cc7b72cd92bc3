"""Show the node on the terminal, redrawn each second while `kubengine run --live` runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from datetime import datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from engine.api.events import Event
from engine.api.struct import to_builtins
from engine.cli.output.pod_table import pod_rows, pod_table
from engine.node import Node

PERIOD = 1.0
LINES = 10


class LiveView(logging.Handler):
    """Show pods and the last events and log lines. As a logging handler it receives what would be printed."""

    def __init__(self, *, leave: str) -> None:
        # Lower levels would push the events out of the few lines that are shown.
        super().__init__(logging.INFO)
        self._leave = leave
        self._lines: deque[Text] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "kubengine.events":
            return  # events arrive through `event`, with more details
        style = "red" if record.levelno >= logging.WARNING else "dim"
        self._lines.append(Text(f"{_clock(record.created)} {record.getMessage()}", style=style))

    def event(self, event: Event) -> None:
        """Receive an event of the node's recorder."""
        style = "yellow" if event.type == "Warning" else ""
        where = "/".join(part for part in (event.pod, event.container) if part)
        self._lines.append(
            Text(f"{_clock(event.at)} {event.reason:<12} {where} {event.message}", style=style)
        )

    async def show(self, node: Node) -> None:
        """Redraw until cancelled."""
        node.recorder.listen(self.event)
        console = Console(stderr=False)
        while True:
            size = console.size
            with Live(self._picture(node), console=console, auto_refresh=False, screen=False) as live:
                while console.size == size:
                    live.update(self._picture(node), refresh=True)
                    await asyncio.sleep(PERIOD)
            # The terminal has wrapped the old frame to the new width, so its number of lines has changed.
            console.clear()

    def _picture(self, node: Node) -> Group:
        cgroups: Any = node.components.get("cgroups")
        groups = cgroups.describe()["groups"] if cgroups is not None else []
        pods = [to_builtins(pod) for pod in node.pods()]
        table = pod_table(
            pod_rows(pods, groups), now=time.time(), title=f"node {node.name}   ({self._leave})"
        )
        return Group(table, Text(), *self._lines)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")
