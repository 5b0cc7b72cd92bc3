"""Render the report as one HTML file without external scripts, fonts or images, so that it opens
from a mail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.host.files import replace_file
from engine.plan.answers.answer import COLUMNS, USED_AFTER, USED_BEFORE, Answer
from engine.plan.answers.output import summary
from engine.plan.answers.readable import readable
from engine.plan.report.embedded import embedded_maps, embedded_rows
from engine.plan.report.plots import plots
from engine.plan.report.sentence import sentence
from engine.plan.report.sides import side_by_side, side_plots

FIRST_ROWS = 200
"""Rows that are shown without the script."""
MAX_KINDS = 200
MAX_PLOTS = 40


def write_report(answer: Answer, source: Mapping[str, Any], path: Path) -> None:
    """Write the report atomically. Raise `Refused` with the path if it cannot be written."""
    replace_file(path, render(answer, source))


def render(answer: Answer, source: Mapping[str, Any]) -> str:
    """Render the whole page."""
    asked = source.get("asked", {})
    title = str(asked.get("question") or Path(str(asked.get("file", "plan"))).name)
    style, script = (
        files("engine.plan.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("style.css", "report.js")
    )
    body = "".join(
        (
            _header(title, source),
            _assertions(asked),
            _numbers(answer),
            side_by_side(answer.compared, _side_names(asked)),
            _map(answer.table),
            _plots(answer),
            _kinds(answer.table),
            _rows(answer),
            _notes(answer),
            _provenance(source),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">"
        f"<title>Kubengine plan: {escape(title)}</title><style>{_minified(style)}</style></head>"
        f"<body><main>{body}</main><script>{script}</script></body></html>"
    )


def _minified(style: str) -> str:
    return re.sub(r"\n+", "", style)


def _header(title: str, source: Mapping[str, Any]) -> str:
    where = ", ".join(str(part) for part in source.get("sources", ())) or "a snapshot"
    asked = source.get("asked", {})
    given = {
        k: v for k, v in (asked.get("parameters") or {}).items() if v not in (None, (), "", [], {}, False)
    }
    words = ", ".join(
        name.replace("_", " ") + ("" if value is True else f" {_plain(value)}")
        for name, value in given.items()
    )
    lead = f"Snapshot: {escape(where)}" + (f"; question: {escape(words)}" if words else "")
    kicker = '<div class="kicker">Kubengine plan</div>'
    return f'<header>{kicker}<h1>{escape(title)}</h1><p class="lead">{lead}</p></header>'


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_plain(one)}" for name, one in value.items())
    return ", ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)


def _assertions(asked: Mapping[str, Any]) -> str:
    if "failures" not in asked:
        return ""
    failures = asked["failures"]
    if not failures:
        return '<div class="failed held"><b>All assertions held.</b></div>'
    items = "".join(f'<div class="failed">{escape(text)}</div>' for text in failures)
    return f"<h2>{len(failures)} assertions failed</h2>{items}"


def _numbers(answer: Answer) -> str:
    nodes = f"{len(answer.table['node'].unique()):,}"
    cards = [(nodes, "nodes in the answer", ""), (f"{len(answer):,}", "rows", "")]
    points = answer.table["scenario"].unique()
    if len(points) > 1:
        cards.append((f"{len(points):,}", "points asked", ""))
        return _cards(cards)
    said = answer.headline or sentence(answer.table)
    totals: dict[tuple[str, str], list[int]] = {}
    for row in summary(answer.table).to_pylist():
        if row["decision"].rpartition(":")[2] in (USED_BEFORE, USED_AFTER):
            continue
        total = totals.setdefault((row["decision"], row["unit"]), [0, 0])
        total[0] += row["amount_count"]
        total[1] += row["amount_sum"]
    for (decision, unit), (count, amount) in list(totals.items())[:8]:
        text = f"{decision}" + (f" · {readable(amount, unit)}" if amount and unit else "")
        cards.append((f"{count:,}", text, decision))
    first = f'<p class="sentence">{escape(said)}</p>' if said else ""
    return first + _cards(cards)


def _cards(cards: list[tuple[str, str, str]]) -> str:
    """Return a card for each (number, text, decision); it leads to the rows of the decision."""
    items = "".join(
        f'<button class="number"{_finding(decision)}><b>{escape(number)}</b>'
        f"<span>{escape(text)}</span></button>"
        for number, text, decision in cards
    )
    return f'<section class="numbers">{items}</section>'


def _finding(decision: str) -> str:
    return f' data-decision="{escape(decision, quote=True)}"' if decision else " disabled"


def _map(table: pa.Table) -> str:
    """Return the map of nodes, which the script draws; empty if there are few."""
    data = embedded_maps(table)
    if not data:
        return ""
    return (
        '<h2>Nodes</h2><figure class="map"><div class="controls">'
        '<select id="measure" aria-label="Value"></select>'
        '<label><input type="checkbox" id="largest"> largest first</label><span id="scale"></span></div>'
        '<canvas id="map" role="img" aria-label="A square for each node, darker for a larger value"></canvas>'
        '<noscript>The map needs scripts.</noscript></figure><div id="tip" hidden></div>'
        f'<script type="application/json" id="map-data">{data}</script>'
    )


def _side_names(asked: Mapping[str, Any]) -> tuple[str, str]:
    """Return the settings, or the snapshots, that are compared."""
    a, b = (_settings(asked.get(side)) for side in "ab")
    return a, b


def _settings(given: object) -> str:
    if isinstance(given, Mapping):
        return (
            ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in given.items())
            or "as given"
        )
    return str(given or "")


def _plots(answer: Answer) -> str:
    figures = []
    for plot in chain(side_plots(answer.compared), plots(answer.table)):
        caption = f"<figcaption>{escape(plot.title)}<small>{escape(plot.subtitle)}</small></figcaption>"
        figures.append(f"<figure>{caption}{plot.drawing}</figure>")
        if len(figures) == MAX_PLOTS:
            break
    return f'<h2>Charts</h2><section class="plots">{"".join(figures)}</section>' if figures else ""


def _table(headings: list[str], rows: list[list[str]], name: str) -> str:
    def css(heading: str) -> str:
        return ' class="amount"' if heading in ("amount", "rows") else ""

    head = "".join(f"<th{css(h)}>{escape(h)}</th>" for h in headings)
    body = "".join(
        "<tr>"
        + "".join(f"<td{css(h)}>{escape(c)}</td>" for h, c in zip(headings, row, strict=True))
        + "</tr>"
        for row in rows
    )
    table = f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _kinds(table: pa.Table) -> str:
    found = summary(table).to_pylist()
    rows = [
        [
            r["scenario"],
            r["decision"],
            r["reason"],
            f"{r['amount_count']:,}",
            readable(r["amount_sum"], r["unit"]),
        ]
        for r in found[:MAX_KINDS]
    ]
    more = f" (the first {MAX_KINDS} of {len(found):,})" if len(found) > MAX_KINDS else ""
    return f"<h2>Decisions and reasons{more}</h2>" + _table(
        ["scenario", "decision", "reason", "rows", "amount"], rows, "kinds"
    )


def _rows(answer: Answer) -> str:
    names = [name for name in COLUMNS if name != "unit"]
    rows = []
    for row in answer.table.slice(0, FIRST_ROWS).to_pylist():
        row["amount"] = readable(row["amount"], row["unit"])
        rows.append([str(row[name]) for name in names])
    data, count = embedded_rows(answer.table)
    more = f"the first {count:,} of {len(answer):,}" if count < len(answer) else f"{len(answer):,}"
    return (
        f'<section id="node" hidden></section><h2>Rows ({more})</h2><div class="controls">'
        '<input id="filter" type="search" placeholder="Words that rows contain…" aria-label="Filter rows">'
        '<select id="decision" aria-label="Decision"><option value="">all decisions</option></select>'
        '<span id="found"></span></div>'
        + _table(names, rows, "rows")
        + '<button id="more" hidden>Show more</button>'
        + f'<script type="application/json" id="row-data">{data}</script>'
    )


def _notes(answer: Answer) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in answer.note_lines)
    return f'<h2>Assumptions</h2><ul class="notes">{items}</ul>' if items else ""


def _provenance(source: Mapping[str, Any]) -> str:
    items = "".join(
        f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(_plain(value))}</dd>"
        for name, value in source.items()
        if value not in (None, "", [], {})
    )
    return f"<h2>Provenance</h2><dl>{items}</dl>"
