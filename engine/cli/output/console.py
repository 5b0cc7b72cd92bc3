"""Where tables are printed: a terminal as wide as it is, or a pipe with room for whole names."""

from __future__ import annotations

import os

from rich.console import Console

PIPE_WIDTH = 160


class PipeConsole(Console):
    """A reader that has seen enough ends the command as it ends any other: `engine.cli.main` says how."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def table_console(width: int = PIPE_WIDTH) -> Console:
    """Standard output; `width` is for a pipe or a file, unless COLUMNS says another."""
    console = PipeConsole()
    return console if console.is_terminal or "COLUMNS" in os.environ else PipeConsole(width=width)
