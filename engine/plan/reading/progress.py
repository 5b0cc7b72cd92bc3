"""Show progress bars on standard error, for people who wait at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Step = Callable[[float], None]
"""Told how much more is done, in the unit of the bar's total."""


def silent(_: float) -> None:
    pass


@contextmanager
def progress(
    label: str, total: float | None, *, shown: bool, unit: Literal["bytes", "questions"]
) -> Iterator[Step]:
    """Show a bar on standard error while the block runs; nothing if not `shown`."""
    if not shown:
        yield silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted: list[ProgressColumn] = [TaskProgressColumn(), TimeElapsedColumn()]
    if unit == "bytes":
        counted = [DownloadColumn(), TransferSpeedColumn()]
    elif total is not None and total > 1:
        counted = [MofNCompleteColumn(), TimeElapsedColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)
