"""Read a history from Prometheus in pieces of bounded size, the newest first.

A piece that is too much for the server is asked for in halves; one that fails is left out and reported. If
the time is up, the oldest pieces are missing.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.api.version import engine_version
from engine.plan.history.codes import MISSING, encode
from engine.plan.history.history import History, HistoryBuilder, Key, Times
from engine.plan.history.prometheus import Prometheus, RangeSeries, TooMuch
from engine.plan.history.queries import MEASURES, NODE_LABELS, REPLICA_LABELS, Measure
from engine.plan.reading.progress import Step, silent
from engine.plan.snapshot.faults import FaultLog

MOST_POINTS: Final = 11_000
"""Points of a series that Prometheus returns in one answer."""
TURN: Final = 86_400
"""Seconds of every measure that are read before older ones."""
CLOCKS_APART: Final = 30.0
GAPS: Final = 0.1
"""A series that lacks a larger share of the moments between its first and its last is reported."""
MOST_SHARED: Final = 2
"""Moments that two series of one container may share before they are reported as copies."""
NO_AMOUNTS: Final = "has values that are not amounts, which are left out"
LEAST_WINDOW: Final = 120
"""Seconds over which a rate is taken at least: two scrapes of the usual 30 s, with one lost."""


@dataclass(frozen=True)
class ReadingBudget:
    """Bound one reading: samples of a query, series in all, seconds in all."""

    samples: int = 2_000_000
    series: int = 5_000_000
    seconds: float = 1800.0


@dataclass
class Collector:
    """Ask one server for all measures over `times`, and report faults per object."""

    server: Prometheus
    times: Times
    faults: FaultLog
    matchers: str = ""
    budget: ReadingBudget = field(default_factory=ReadingBudget)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._builder = HistoryBuilder(self.times)
        self._copies: dict[Key, set[str]] = {}
        self._doubled: Counter[Key] = Counter()
        self._missing: Counter[str] = Counter()
        self._refusals: dict[str, str] = {}
        self._expected = 0
        self._until = self.clock() + self.budget.seconds

    def collect(self, step: Step = silent) -> History:
        """Return what can be read, the newest day of all measures first.

        `step` receives the fraction of the work done by each step. Raise `KubengineError` if the server
        gives no use of containers.
        """
        points = {measure: self._points(measure) for measure in MEASURES}
        turn = max(TURN // self.times.step, 1)
        for last in range(self.times.count, 0, -turn):
            first = max(last - turn, 0)
            for measure, most in points.items():
                for end in range(last, first, -most):
                    self._piece(measure, max(end - most, first), end)
                step((last - first) / self.times.count / len(points))
        there = self._builder.measures
        for measure in MEASURES:
            if measure.name not in there and not measure.optional:
                self._absent(measure)
        self._report()
        meta = {
            "sources": [self.server.address],
            "version": engine_version(),
            "faults": dict(self.faults.counts.most_common(100)),
            "incomplete": dict(self._missing),
        }
        return self._builder.history(meta)

    def _points(self, measure: Measure) -> int:
        """Return how many moments of a measure one query may ask for."""
        try:
            series = self.server.number(measure.count(self.matchers), self.times.end)
        except Unavailable:
            raise
        except KubengineError:
            # The queries for its values tell what is wrong; a limit on series does not concern them.
            series = 0.0
        self._expected += int(series)
        if self._expected > self.budget.series:
            raise InvalidInput(
                f"{series:,.0f} series of {measure.metric} are more than --max-series allows; "
                "select some with --match",
                subject=self.server.address,
            )
        return int(np.clip(self.budget.samples // max(series, 1), 1, min(MOST_POINTS, self.times.count)))

    def _absent(self, measure: Measure) -> None:
        text = f"has no series of {measure.metric}"
        if measure.required and measure.name in self._refusals:
            said = f"refuses every query of {measure.metric}: {self._refusals[measure.name]}"
            raise Refused(said, subject=self.server.address)
        if measure.required and measure.name in self._missing:
            raise Unavailable(
                "the time was up before any use was read; raise --max-time", subject=self.server.address
            )
        if measure.required:
            where = f" that match {self.matchers}" if self.matchers else ""
            raise InvalidInput(
                f"{text}{where} between {self.times.text(0)} and {self.times.text(self.times.count - 1)}: "
                "does it scrape the kubelets' /metrics/cadvisor, at least twice a step?",
                subject=self.server.address,
            )
        self.faults.add(self.server.address, "", measure.name, text, kind=f"no {measure.metric}")

    def _piece(self, measure: Measure, first: int, last: int) -> None:
        """Read the moments from `first` to `last` (excluded), in halves if they are too much at once."""
        if self.clock() > self._until:
            self._missing[measure.name] += last - first
            return
        times = self.times
        window = max(times.step, LEAST_WINDOW)
        start, end = times.start + first * times.step, times.start + (last - 1) * times.step
        try:
            found = self.server.range(measure.query(window, self.matchers), start, end, times.step)
        except Unavailable:
            raise
        except KubengineError as error:
            if isinstance(error, TooMuch) and last - first > 1:
                middle = (first + last) // 2
                self._piece(measure, middle, last)
                self._piece(measure, first, middle)
                return
            if measure.required and not isinstance(error, TooMuch):
                raise
            self._missing[measure.name] += last - first
            self._refusals[measure.name] = error.message
            self._fault(
                measure,
                f"{times.text(first)} to {times.text(last - 1)}",
                error.message,
                "a piece is left out",
            )
            return
        for series in found:
            self._add(measure, series)

    def _add(self, measure: Measure, series: RangeSeries) -> None:
        key = _key(measure, series.metric)
        if key is None:
            self._fault(measure, str(series.metric), "names no pod or node", "a series without names")
            return
        pairs = np.array(series.values, np.float64).reshape(-1, 2)
        moments = np.rint((pairs[:, 0] - self.times.start) / self.times.step)
        amounts = pairs[:, 1] * measure.scale
        usable = (moments >= 0) & (moments < self.times.count) & np.isfinite(amounts) & (amounts >= 0)
        at = np.where(usable, moments, 0).astype(np.int64)
        if not usable.all():
            self._fault(measure, _named(key), NO_AMOUNTS, NO_AMOUNTS)
        self._doubled[key] += self._builder.add(key, at[usable], encode(amounts[usable]))
        labels = (*REPLICA_LABELS, *NODE_LABELS)
        copy = ", ".join(f'{name}="{series.metric[name]}"' for name in labels if series.metric.get(name))
        self._copies.setdefault(key, set()).add(copy or "one without these labels")

    def _report(self) -> None:
        """Report what holds for objects, or for the whole history."""
        begins: dict[str, int] = {}
        for key, copies in self._copies.items():
            # A pod that moves to another node has both series for the moments that its window covers.
            if self._doubled[key] > MOST_SHARED:
                shown = " and ".join(sorted(copies)[:2])
                text = f"{len(copies)} series at once ({shown}); the larger value of each moment counts"
                self.faults.add(self.server.address, _named(key), key[0], text, kind="has several series")
            known = np.flatnonzero(self._builder.row(key) != MISSING)
            if not len(known):
                continue
            begins[key[0]] = min(begins.get(key[0], self.times.count), int(known[0]))
            span = int(known[-1] - known[0]) + 1
            lacking = span - len(known)
            if lacking > span * GAPS:
                text = f"has gaps: {lacking} of {span} moments between its first and last value are missing"
                self.faults.add(self.server.address, _named(key), key[0], text, kind="has gaps")
        self._report_beginnings(begins)
        offset = self.server.clock_offset
        if abs(offset) > CLOCKS_APART:
            side = "ahead of" if offset > 0 else "behind"
            text = f"its clock is {abs(offset):.0f} s {side} this machine's; moments are those of the server"
            self.faults.add(self.server.address, "", "", text, kind="clocks are apart")
        for name, count in self._missing.items():
            text = (
                f"{count} of {self.times.count} moments are missing (the time was up, or the server refused)"
            )
            self.faults.add(self.server.address, "", name, text, kind="is incomplete")
        for warning in self.server.warnings:
            self.faults.add(self.server.address, "", "", warning, kind="warns")

    def _report_beginnings(self, begins: Mapping[str, int]) -> None:
        """Report the measures whose first value of all, at `begins`, comes late: a server may keep values for
        a shorter time, and Mimir shortens queries without a word.
        """
        for name, first in begins.items():
            if first > self.times.count * GAPS and name not in self._missing:
                text = f"begins {first} of {self.times.count} moments late, at {self.times.text(first)}"
                self.faults.add(self.server.address, "", name, text, kind="begins late")

    def _fault(self, measure: Measure, subject: str, problem: str, kind: str) -> None:
        self.faults.add(self.server.address, subject, measure.name, problem, kind=kind)


def _key(measure: Measure, labels: Mapping[str, str]) -> Key | None:
    """Return what a series measures; None if it does not name it."""
    node = next((labels[name] for name in NODE_LABELS if labels.get(name)), "").partition(":")[0]
    if not measure.of_containers:
        return (measure.name, node, "", "", "") if node else None
    namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
    # A pod's name is used once in a namespace at a time: its node would only split the series of one.
    container = labels.get("container", "")
    return (measure.name, "", namespace, pod, container) if namespace and pod and container else None


def _named(key: Key) -> str:
    _, node, namespace, pod, container = key
    return f"container {namespace}/{pod}/{container}" if pod else f"node {node}"


def aligned(end: float, days: float, step: int) -> Times:
    """Return moments at multiples of the step, the last one at or before `end`."""
    count = max(math.ceil(days * 86_400 / step), 1)
    last = int(end) // step * step
    return Times(last - (count - 1) * step, step, count)
