"""Plots as inline SVG: bars, histograms, curves, paired bars. Text and colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from engine.api.amounts.sizes import quantity_size

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 14, 30
MAX_DUMBBELLS = 80
USUAL, FAR, FAR_OF_FEW = 0.95, 2.0, 10.0
"""So many times what this share of nodes has at most is far beyond the rest; more for few nodes, of which the
largest is often a multiple of the others.
"""
FEW = 20
SERIES = 8
"""How many series colours the page's style has."""


def short(value: float, unit: str) -> str:
    """Format a number for an axis: `1.5k`, `3.2Gi`."""
    if unit == "bytes":
        return quantity_size(round(value))
    names = ("", "k", "M", "G", "T", "P")
    size, index = float(value), 0
    while abs(size) >= 1000 and index < len(names) - 1:
        size, index = size / 1000, index + 1
    text = f"{size:.0f}" if size == int(size) or abs(size) >= 100 else f"{size:.1f}"
    return f"{text}{names[index]}"


def ticks(low: float, high: float, count: int = 5, unit: str = "") -> list[float]:
    """Round numbers from at or below `low` to at or above `high`; powers of two for bytes."""
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    if unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _text(css: str, x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(color: int, box: tuple[float, float, float, float], title: str) -> str:
    """Draw a rectangle; `box` is left, top, width, height; the title shows when the pointer rests on it."""
    left, top, width, height = box
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"'
    return f'<rect class="s{color % SERIES}" {place}><title>{escape(title)}</title></rect>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label, quote=True)}">'
    return head + "".join(parts) + "</svg>"


class _Frame:
    """Map values to positions between the axes of a plot."""

    def __init__(
        self, x: tuple[float, float], y_marks: list[float], unit: str, *, height: int = HEIGHT
    ) -> None:
        self.low, self.high = x
        self.bottom, self.top = y_marks[0], y_marks[-1]
        self.height = height
        self.parts: list[str] = []
        self.below = ""
        self._labels = 0
        for mark in y_marks:
            at = self.y(mark)
            self.parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            self.parts.append(_text("tick", LEFT - 8, at + 4, "end", short(mark, unit)))

    def x(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return LEFT + (value - self.low) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        span = (self.top - self.bottom) or 1.0
        return self.height - BOTTOM - (value - self.bottom) / span * (self.height - TOP - BOTTOM)

    def x_label(self, at: float, text: str) -> None:
        """Write a label under the axis; a narrow screen shows every second one."""
        css = "tick second" if self._labels % 2 else "tick"
        self._labels += 1
        self.parts.append(_text(css, at, self.height - BOTTOM + 18, "middle", text))

    def caption(self, x_text: str, y_text: str) -> None:
        self.below = f'<div class="below">{escape(x_text)}</div>' if x_text else ""
        self.parts.append(
            f'<text class="axis" transform="translate(13 {(self.height - BOTTOM + TOP) / 2}) rotate(-90)" '
            f'text-anchor="middle">{escape(y_text)}</text>'
        )

    def done(self, label: str) -> str:
        return _svg(self.height, label, self.parts) + self.below


def horizontal_bars(items: Sequence[tuple[str, float, str]], label: str, color: int | None = None) -> str:
    """Draw items (name, value, text at the bar); each in its own colour by default.

    Bars are elements of the page, whose texts wrap on a narrow screen.
    """
    largest = max((value for _, value, _ in items), default=0) or 1
    bars = "".join(
        _bar(name, f"{name}: {text}", value / largest, text, index if color is None else color)
        for index, (name, value, text) in enumerate(items)
    )
    return _bars(bars, label)


def _bars(bars: str, label: str) -> str:
    return f'<div class="bars" role="group" aria-label="{escape(label, quote=True)}">{bars}</div>'


def _bar(name: str, title: str, share: float, text: str, color: int) -> str:
    """Return a bar of this share of the longest; the title shows when the pointer rests on it."""
    return (
        f'<div title="{escape(title, quote=True)}"><span class="name">{escape(name)}</span>'
        f'<span><i class="b{color % SERIES}" style="width:{max(100 * share, 0.5):.1f}%"></i></span>'
        f'<span class="value">{escape(text)}</span></div>'
    )


def histogram(values: NDArray[np.int64], unit: str, x_text: str, y_text: str, color: int = 0) -> str:
    """Draw how many nodes have each value; a few whole numbers get a bar each."""
    low, high = float(values.min()), float(values.max())
    distinct = np.unique(values)
    if len(distinct) <= 24 and high - low < 24 and unit != "bytes":
        edges = np.arange(low - 0.5, high + 1.5)
    else:
        edges = np.array(ticks(low, high, 24, unit), float)
    counts, edges = np.histogram(values, edges)
    frame = _Frame((float(edges[0]), float(edges[-1])), ticks(0, float(counts.max()) or 1.0), "")
    for count, begin, end in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            left, right, top = frame.x(begin), frame.x(end), frame.y(count)
            whole = end - begin == 1 and begin != int(begin)
            said = f"{(begin + end) / 2:.0f}" if whole else f"{short(begin, unit)} – {short(end, unit)}"
            box = (left + 0.7, top, max(right - left - 1.4, 0.8), frame.y(0) - top)
            frame.parts.append(_rect(color, box, f"{said} {unit}: {count:,} nodes"))
    for mark in ticks(low, high, 6, unit):
        if edges[0] <= mark <= edges[-1] and (unit == "bytes" or mark == int(mark) or high - low < 3):
            frame.x_label(frame.x(mark), short(mark, unit))
    frame.caption(x_text, y_text)
    return frame.done(f"{y_text} by {x_text}")


def ranked_area(values: NDArray[np.int64], unit: str, y_text: str, color: int = 0) -> str:
    """Draw nodes from most to least as an area, which shows how uneven the load is."""
    ordered = np.sort(values)[::-1]
    frame = _Frame((0, max(len(ordered) - 1, 1)), ticks(0, float(ordered[0]) or 1.0, unit=unit), unit)
    picked = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), 240)).astype(int))
    points = " ".join(f"{frame.x(i):.1f},{frame.y(float(ordered[i])):.1f}" for i in picked)
    base = frame.y(0)
    outline = f"{frame.x(0):.1f},{base:.1f} {points} {frame.x(picked[-1]):.1f},{base:.1f}"
    frame.parts.append(f'<polygon class="a{color}" points="{outline}"/>')
    frame.parts.append(f'<polyline class="l{color}" points="{points}"/>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = share * (len(ordered) - 1)
        frame.x_label(frame.x(at), f"{at + 1:,.0f}")
    frame.caption("nodes, from most to least", y_text)
    return frame.done(f"{y_text} of each node, sorted")


def curves(
    series: Sequence[tuple[str, list[float], list[float]]], unit: str, x_text: str, y_text: str
) -> str:
    """Draw each (name, x, y) as a curve, with a legend."""
    xs = [x for _, values, _ in series for x in values]
    ys = [y for _, _, values in series for y in values]
    frame = _Frame((min(xs), max(xs)), ticks(min(0.0, *ys), max([*ys, 1.0]), unit=unit), unit)
    for index, (name, x_values, y_values) in enumerate(series):
        points = " ".join(
            f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(x_values, y_values, strict=True)
        )
        frame.parts.append(f'<polyline class="l{index % SERIES}" points="{points}"/>')
        for x, y in zip(x_values, y_values, strict=True):
            frame.parts.append(
                f'<circle class="s{index % SERIES}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5">'
                f"<title>{escape(name)}: {short(x, '')} → {y:,.0f} {escape(unit)}</title></circle>"
            )
    for mark in sorted(set(xs)) if len(set(xs)) <= 8 else ticks(min(xs), max(xs), 6):
        if min(xs) <= mark <= max(xs):
            frame.x_label(frame.x(mark), f"{mark:g}")
    frame.caption(x_text, y_text)
    return frame.done(f"{y_text} over {x_text}") + legend([name for name, _, _ in series])


def paired_bars(items: Sequence[tuple[str, float, float]], names: tuple[str, str], label: str) -> str:
    """Draw each (name, before, after) as two bars, one under the other."""
    largest = max((value for item in items for value in item[1:]), default=0) or 1
    bars = "".join(
        _bar(
            name if not side else "",
            f"{name}, {names[side]}: {value:,.0f}",
            value / largest,
            f"{value:,.0f}",
            side,
        )
        for name, *both in items
        for side, value in enumerate(both)
    )
    return _bars(bars, label) + legend(list(names))


def dumbbells(
    items: Sequence[tuple[str, float, float]], names: tuple[str, str], unit: str, y_text: str
) -> str:
    """Draw each (name, before, after) as two dots on a line, largest `before` first; of many, an even choice.

    What is far beyond the rest would press it into a line: it is left out, and the caption says so.
    """
    ordered = sorted(items, key=lambda item: -item[1])
    largest = np.array([max(before, after) for _, before, after in ordered])
    few = len(ordered) <= FEW
    # Of few values, interpolation would count the outlier itself as usual.
    at = float(np.quantile(largest, USUAL, method="lower" if few else "linear"))
    usual = at * (FAR_OF_FEW if few else FAR)
    kept = [item for item, most in zip(ordered, largest.tolist(), strict=True) if most <= usual or not at]
    kept = kept or ordered
    picked = np.unique(np.linspace(0, len(kept) - 1, min(len(kept), MAX_DUMBBELLS)).astype(int))
    shown = [kept[index] for index in picked]
    frame = _Frame(
        (-0.5, len(shown) - 0.5), ticks(0, max(1.0, *(max(i[1:]) for i in shown)), unit=unit), unit
    )
    radius = 4.5 if len(shown) <= 40 else 3
    for place, (name, before, after) in enumerate(shown):
        x, ends = frame.x(place), (frame.y(before), frame.y(after))
        frame.parts.append(
            f'<line class="drop" x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}"/>'
        )
        for side, value in enumerate((before, after)):
            said = f"{name}, {names[side]}: {short(value, unit)}"
            frame.parts.append(
                f'<circle class="s{side}" cx="{x:.1f}" cy="{ends[side]:.1f}" r="{radius}">'
                f"<title>{escape(said)}</title></circle>"
            )
    chosen = f" ({len(shown)} of {len(kept):,}, evenly chosen)" if len(shown) < len(kept) else ""
    if len(kept) < len(ordered):
        chosen += f"; {len(ordered) - len(kept):,} above {short(usual, unit)} not shown"
    frame.caption(f"nodes, most used first{chosen}", y_text)
    return frame.done(f"{y_text}: {names[0]} and {names[1]}") + legend(list(names))


def legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<span><i class="b{index % SERIES}"></i>{escape(name)}</span>' for index, name in enumerate(names)
    )
    return f'<div class="legend">{items}</div>'
