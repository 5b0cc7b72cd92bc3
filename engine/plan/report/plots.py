"""Choose an answer's plots by its decisions; `svg` draws them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.api.encoding.counts import counted
from engine.plan.answers.answer import USED_AFTER, USED_BEFORE
from engine.plan.answers.output import plain, summary
from engine.plan.answers.readable import NO_LIMIT, readable
from engine.plan.report import svg

TOP = 15
MAX_SERIES = 6
_POINT = re.compile(r"(.*)\[(.+)\]")
_QUANTITY = re.compile(r"-?\d+(?:\.\d+)?")
_OF_OBJECTS = ("victim", "evict", "remove", "move", "remains", "used-again")


@dataclass(frozen=True)
class Plot:
    title: str
    subtitle: str
    drawing: str


def plots(table: pa.Table) -> Iterator[Plot]:
    """Return the plots: overview first, then sweeps, comparisons, and how nodes differ."""
    uses = pc.is_in(table["decision"].cast(pa.string()), pa.array([USED_BEFORE, USED_AFTER]))
    levels, table = table.filter(uses), table.filter(pc.invert(uses))
    kinds = summary(table).to_pylist()
    if not kinds:
        return
    yield _overview(kinds)
    yield from _used(levels, _shown_scenarios(kinds))
    yield from _sweeps(table)
    colors = {
        name: index % svg.SERIES for index, name in enumerate(dict.fromkeys(r["decision"] for r in kinds))
    }
    for scenario in _shown_scenarios(kinds):
        rows = table.filter(pc.equal(table["scenario"].cast(pa.string()), scenario))
        mine = [row for row in kinds if row["scenario"] == scenario]
        for decision, unit in dict.fromkeys((row["decision"], row["unit"]) for row in mine):
            if unit == NO_LIMIT:
                continue
            for plot in _per_node(rows, decision, unit, colors[decision]):
                yield replace(plot, title=f"{scenario}: {plot.title}") if scenario else plot


def _shown_scenarios(kinds: list[dict[str, Any]]) -> list[str]:
    """Return the last point of each scenario: amounts of different points must not be added up."""
    last: dict[str, str] = {}
    for row in kinds:
        match = _POINT.fullmatch(row["scenario"])
        last[match[1] if match else row["scenario"]] = row["scenario"]
    return list(last.values())


def _overview(kinds: list[dict[str, Any]]) -> Plot:
    totals: dict[str, int] = {}
    for row in kinds:
        totals[row["decision"]] = totals.get(row["decision"], 0) + row["amount_count"]
    items = [(name, float(count), counted(count, "row")) for name, count in totals.items()][:TOP]
    return Plot("Decisions", "rows per decision", svg.horizontal_bars(items, "rows per decision"))


def _sweeps(table: pa.Table) -> Iterator[Plot]:
    """Return curves over each swept parameter whose values are numbers."""
    rows = summary(table).to_pylist()
    curves: dict[tuple[str, str, str], dict[str, dict[float, float]]] = {}
    for row in rows:
        match = _POINT.fullmatch(row["scenario"])
        if match is None:
            continue
        settings = dict(part.split("=", 1) for part in match[2].split(",") if "=" in part)
        for field, value in settings.items():
            number = _QUANTITY.match(value)
            if number is None:
                continue
            rest = ", ".join(f"{name}={other}" for name, other in settings.items() if name != field)
            name = f"{row['decision']} ({rest})" if rest else row["decision"]
            is_counted = row["decision"] in _OF_OBJECTS or row["unit"] == NO_LIMIT
            amounts = 0 if is_counted else row["amount_sum"]
            measure = "rows" if not amounts else row["unit"]
            y = float(amounts or row["amount_count"])
            points = curves.setdefault((match[1], field, measure), {}).setdefault(name, {})
            points[float(number[0])] = points.get(float(number[0]), 0.0) + y
    for (scenario, field, measure), by_name in curves.items():
        series = [
            (name, sorted(points), [points[x] for x in sorted(points)])
            for name, points in by_name.items()
            if len(points) > 1
        ]
        if series:
            drawing = svg.curves(series[:MAX_SERIES], measure if measure != "rows" else "", field, measure)
            yield Plot(f"{scenario}: sweep over {field}", f"{measure} per value", drawing)


def _used(levels: pa.Table, scenarios: list[str]) -> Iterator[Plot]:
    """Return per resource what each node uses before and after; the mean if several pods were asked about."""
    by_resource: dict[tuple[str, str, str], pa.Table] = {}
    levels = plain(levels)
    for scenario in scenarios:
        mine = levels.filter(pc.equal(levels["scenario"], scenario))
        for resource, unit in dict.fromkeys(
            zip(mine["object"].to_pylist(), mine["unit"].to_pylist(), strict=True)
        ):
            same = pc.and_(pc.equal(mine["object"], resource), pc.equal(mine["unit"], unit))
            by_resource[scenario, resource, unit] = mine.filter(same)
    for (scenario, resource, unit), rows in by_resource.items():
        means = rows.group_by(["node", "decision"], use_threads=False).aggregate([("amount", "mean")])
        sides: dict[str, dict[str, float]] = {USED_BEFORE: {}, USED_AFTER: {}}
        for row in means.to_pylist():
            sides[row["decision"]][row["node"]] = row["amount_mean"]
        both = [(node, a, sides[USED_AFTER].get(node, a)) for node, a in sides[USED_BEFORE].items()]
        before, after = (readable(int(sum(amounts)), unit) for amounts in list(zip(*both, strict=True))[1:])
        title = f"{resource}: used before and after"
        yield Plot(
            f"{scenario}: {title}" if scenario else title,
            f"{counted(len(both), 'node')} with a change, {before} → {after} in all",
            svg.dumbbells(both, ("before", "after"), unit, f"{resource} used, {unit}"),
        )


def _per_node(table: pa.Table, decision: str, unit: str, color: int) -> Iterator[Plot]:
    rows = table.filter(pc.equal(table["decision"].cast(pa.string()), decision))
    rows = rows.filter(pc.equal(rows["unit"].cast(pa.string()), unit))
    grouped = rows.select(["node", "amount"]).group_by("node", use_threads=False).aggregate(
        [("amount", "sum"), ("amount", "count")]
    )  # fmt: skip
    amounts: NDArray[np.int64] = grouped["amount_sum"].to_numpy()
    counts: NDArray[np.int64] = grouped["amount_count"].to_numpy()
    # One value on all nodes is a single block, which the overview and the rows say in fewer words.
    if decision in _OF_OBJECTS and len(counts) and counts.min() < counts.max():
        drawing = svg.histogram(counts, "", f"{decision} rows per node", "nodes", color)
        yield Plot(f"{decision}: how many per node", f"{len(counts):,} nodes have any", drawing)
    if len(amounts) < 2 or amounts.min() == amounts.max():
        return
    said = f"{readable(int(amounts.sum()), unit)} in all, median {readable(int(np.median(amounts)), unit)}"
    drawing = svg.histogram(amounts, unit, f"{unit} per node", "nodes", color)
    yield Plot(f"{decision}, {unit}: distribution over nodes", said, drawing)
    names = grouped["node"].cast(pa.string()).to_pylist()
    order = np.argsort(-amounts, kind="stable")[:TOP]
    items = [(names[i], float(amounts[i]), readable(int(amounts[i]), unit)) for i in order if amounts[i] > 0]
    if len(amounts) > TOP * 2 and amounts.min() >= 0:
        drawing = svg.ranked_area(amounts, unit, unit, color)
        yield Plot(f"{decision}, {unit}: every node", "sorted; the steeper, the more uneven", drawing)
    if items:
        drawing = svg.horizontal_bars(items, f"{decision} per node", color)
        yield Plot(f"{decision}, {unit}: top nodes", f"the first {len(items)}", drawing)
