"""Choose the console that tables are printed on: a terminal at its own width, or a pipe wide enough for whole
names.
"""

from __future__ import annotations

import os

from rich.console import Console

PIPE_WIDTH = 160


class PipeConsole(Console):
    """End the command quietly when the reader closes the pipe, as `engine.cli.main` does for
    every command.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def table_console(width: int = PIPE_WIDTH) -> Console:
    """Return a console on standard output; `width` applies to a pipe or a file unless COLUMNS is set."""
    console = PipeConsole()
    return console if console.is_terminal or "COLUMNS" in os.environ else PipeConsole(width=width)
