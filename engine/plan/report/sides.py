"""Show two answers to one question side by side: a sentence of each, a table of decisions, and charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from engine.plan.answers.answer import USED_AFTER, USED_BEFORE, Answer, ComparedAnswers
from engine.plan.answers.output import plain
from engine.plan.answers.readable import readable
from engine.plan.report import svg
from engine.plan.report.plots import Plot
from engine.plan.report.sentence import sentence

MAX_COMPARED: Final = 8
MAX_NODE_CHARTS: Final = 4
HEADINGS: Final = ("decision", "rows of A", "rows of B", "amount of A", "amount of B", "change")


class _Total(NamedTuple):
    rows: int
    amount: int


_NOTHING: Final = _Total(0, 0)


def side_by_side(compared: Sequence[ComparedAnswers], names: tuple[str, str]) -> str:
    """Return a section for each pair of answers; `names` describe what was asked under A and B."""
    return "".join(_section(one, names) for one in compared[:MAX_COMPARED])


def side_plots(compared: Sequence[ComparedAnswers]) -> Iterator[Plot]:
    """Yield charts of how many rows each decision has under A and B, and of the nodes whose amounts
    differ.
    """
    for one in compared[:MAX_COMPARED]:
        start = f"{one.scenario}: " if one.scenario else ""
        a, b = _totals(one.a), _totals(one.b)
        items = _rows_of_each(a, b)
        if items:
            drawing = svg.paired_bars(items, ("A", "B"), "rows of each decision under A and B")
            yield Plot(f"{start}A and B", "rows of each decision", drawing)
        yield from _node_plots(one, start, _kinds(a, b))


def _rows_of_each(
    a: Mapping[tuple[str, str], _Total], b: Mapping[tuple[str, str], _Total]
) -> list[tuple[str, float, float]]:
    """Return each decision with its rows under A and under B, whatever their unit."""
    counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for count, totals in zip(counts, (a, b), strict=True):
        for (decision, _), total in totals.items():
            count[decision] += total.rows
    decisions = dict.fromkeys(decision for decision, _ in _kinds(a, b))
    return [(decision, float(counts[0][decision]), float(counts[1][decision])) for decision in decisions]


def _node_plots(one: ComparedAnswers, start: str, kinds: Sequence[tuple[str, str]]) -> Iterator[Plot]:
    shown = 0
    for decision, unit in kinds:
        a, b = (_of_nodes(answer.table, decision, unit) for answer in (one.a, one.b))
        items = [
            (node, float(a.get(node, 0)), float(b.get(node, 0)))
            for node in dict.fromkeys([*a, *b])
            if node and a.get(node, 0) != b.get(node, 0)
        ]
        if items:
            drawing = svg.dumbbells(items, ("A", "B"), unit, f"{decision}, {unit}")
            yield Plot(f"{start}{decision} under A and B", f"{len(items):,} nodes that differ", drawing)
            shown += 1
        if shown == MAX_NODE_CHARTS:
            return


def _section(one: ComparedAnswers, names: tuple[str, str]) -> str:
    heading = f"Side by side: {one.scenario}" if one.scenario else "Side by side"
    sides = "".join(
        f'<div class="side"><h3>{letter}</h3><p class="notes">{escape(name)}</p>'
        f"<p>{escape(answer.headline or sentence(answer.table) or 'No rows.')}</p></div>"
        for letter, name, answer in zip("AB", names, (one.a, one.b), strict=True)
    )
    a, b = _totals(one.a), _totals(one.b)
    lines = "".join(
        _line(one.scenario, kind, a.get(kind, _NOTHING), b.get(kind, _NOTHING)) for kind in _kinds(a, b)
    )
    head = "".join(f'<th class="{_css(at)}">{name}</th>' for at, name in enumerate(HEADINGS))
    return (
        f'<h2>{escape(heading)}</h2><section class="sides">{sides}</section>'
        f'<div class="scroll"><table class="compared"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _css(column: int) -> str:
    return "amount" if column else ""


def _line(scenario: str, kind: tuple[str, str], a: _Total, b: _Total) -> str:
    """Return the table row of a decision; its name leads to the rows that differ."""
    decision, unit = kind
    words = escape(f"{scenario} :{decision}".strip(), quote=True)
    change = b.amount - a.amount
    said = f"{'+' if change > 0 else ''}{readable(change, unit)}" if change else "–"
    cells = f"{a.rows:,}", f"{b.rows:,}", readable(a.amount, unit), readable(b.amount, unit), said
    return (
        f'<tr><td><button class="link" data-words="{words}">{escape(decision)}</button></td>'
        + "".join(f'<td class="amount">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
    )


def _totals(answer: Answer) -> Mapping[tuple[str, str], _Total]:
    """Return rows and amount of each (decision, unit), in order of first appearance, without use before and
    after: sums over different nodes say nothing.
    """
    rows = plain(answer.table.select(["decision", "unit", "amount"]))
    found = rows.group_by(["decision", "unit"], use_threads=False).aggregate(
        [("amount", "count"), ("amount", "sum")]
    )
    return {
        (row["decision"], row["unit"]): _Total(row["amount_count"], row["amount_sum"])
        for row in found.to_pylist()
        if row["decision"] not in (USED_BEFORE, USED_AFTER)
    }


def _kinds(a: Mapping[tuple[str, str], Any], b: Mapping[tuple[str, str], Any]) -> list[tuple[str, str]]:
    return list(dict.fromkeys([*a, *b]))


def _of_nodes(table: pa.Table, decision: str, unit: str) -> dict[str, int]:
    """Return the amount of each node that has rows of a decision."""
    rows = plain(table.select(["node", "decision", "unit", "amount"]))
    mine = rows.filter(pc.and_(pc.equal(rows["decision"], decision), pc.equal(rows["unit"], unit)))
    found = mine.group_by("node", use_threads=False).aggregate([("amount", "sum")])
    return dict(zip(found["node"].to_pylist(), found["amount_sum"].to_pylist(), strict=True))
