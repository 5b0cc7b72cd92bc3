"""Compare two runs of the node bench, figure by figure, with the spread of their repetitions.

Pure, apart from reading the file of the earlier run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec
from rich.table import Table

from engine.api.errors import InvalidInput
from engine.bench.node import NodeBenchResult
from engine.bench.report import line, rows, spread

ENGINE: Final = "engine"
HEADS: Final = ("phase", "figure", "before", "now", "now / before", "verdict")
BETTER, WORSE, SAME, OPEN = "better", "worse", "within the spread", "one repetition"
MORE_IS_BETTER: Final = {"http_per_s", "tcp_per_s", "exec_per_s", "pods_per_s", "images"}
"""Figures of which more is better, or that only say how much was done."""
SAME_OPTIONS: Final = ("pods", "seconds", "runtime", "load", "images")


class ComparedFigure(NamedTuple):
    """Compare one figure of this engine in two runs: the values of all repetitions, and the verdict.

    A change is better or worse only if the ranges of the two runs do not meet.
    """

    phase: str
    name: str
    before: Sequence[float]
    now: Sequence[float]
    verdict: str

    @property
    def ratio(self) -> float | None:
        """Return the ratio of the medians, None if the earlier one is zero."""
        earlier = median(self.before)
        return median(self.now) / earlier if earlier else None


def read_result(path: Path) -> NodeBenchResult:
    """Read what `--output` of an earlier run wrote. Raise `InvalidInput` naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeBenchResult)
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), subject=str(path)) from None
    except msgspec.DecodeError as error:
        text = f"not a result of `kubengine bench node --output`: {error}"
        raise InvalidInput(text, subject=str(path)) from None


def compared(before: NodeBenchResult, now: NodeBenchResult) -> Iterator[ComparedFigure]:
    """Yield the figures of this engine that both runs have, in reading order."""
    earlier = {(phase, name): values.get(ENGINE, []) for phase, name, values in rows(before)}
    for phase, name, values in rows(now):
        old, new = earlier.get((phase, name), []), values.get(ENGINE, [])
        if old and new:
            yield ComparedFigure(phase, name, old, new, _verdict(name, old, new))


def different_conditions(before: NodeBenchResult, now: NodeBenchResult) -> list[str]:
    """Return in words what else than the engine differs between the runs."""
    pairs = [
        *((name, before.machine.get(name), now.machine.get(name)) for name in now.machine),
        *((name, before.options.get(name), now.options.get(name)) for name in SAME_OPTIONS),
    ]
    # The file has lists where the options have tuples.
    return [f"{name}: {old}, now {new}" for name, old, new in pairs if _plain(old) != _plain(new)]


def _plain(value: object) -> object:
    return msgspec.to_builtins(value)


def _verdict(name: str, before: Sequence[float], now: Sequence[float]) -> str:
    if min(len(before), len(now)) < 2:
        return OPEN
    if max(now) < min(before):
        return WORSE if name in MORE_IS_BETTER else BETTER
    if min(now) > max(before):
        return BETTER if name in MORE_IS_BETTER else WORSE
    return SAME


def comparison_table(before: NodeBenchResult, now: NodeBenchResult) -> Table:
    """Return a table with a line for each figure of both runs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(HEADS):
        table.add_column(name.upper(), justify="right" if index in (2, 3, 4) else "left", no_wrap=True)
    for cells in comparison_rows(list(compared(before, now))):
        table.add_row(*cells)
    return table


def comparison_markdown(before: NodeBenchResult, now: NodeBenchResult) -> str:
    """Return the same in Markdown."""
    cells = comparison_rows(list(compared(before, now)))
    return "\n".join([line(HEADS), "|---|---|---:|---:|---:|---|", *map(line, cells)])


def comparison_rows(figures: Sequence[ComparedFigure]) -> list[list[str]]:
    """Return the cells of a table: phase, figure, both runs, the ratio of now to before, the verdict."""
    found, last = [], ""
    for each in figures:
        ratio = "–" if each.ratio is None else f"{each.ratio:.3g}"
        phase = "" if each.phase == last else each.phase
        found.append([phase, each.name, spread(each.before), spread(each.now), ratio, each.verdict])
        last = each.phase
    return found
