"""Counters, gauges and histograms that cost a dict update, under the kubelet's metric names.

Packages count here without importing a metrics library; `engine.server` turns a `Registry` into Prometheus
text on request. Imports nothing else in `engine`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

Labels = tuple[str, ...]
Sample = tuple[Labels, float]
DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metric(msgspec.Struct):
    """Hold a counter or a gauge with a value per label tuple."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    values: dict[Labels, float] = msgspec.field(default_factory=dict)

    def inc(self, *labels: str, by: float = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + by

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value

    def remove(self, *labels: str) -> None:
        self.values.pop(labels, None)


class Histogram(msgspec.Struct):
    """Hold cumulative buckets and a sum per label tuple; `observe` takes seconds unless the name says
    otherwise.
    """

    name: str
    help: str
    labels: Labels
    buckets: tuple[float, ...]
    counts: dict[Labels, list[int]] = msgspec.field(default_factory=dict)
    sums: dict[Labels, float] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # As in Go's client library, a histogram without labels shows zeros before the first observation.
        if not self.labels:
            self._begin(())

    def observe(self, value: float, *labels: str) -> None:
        counts = self.counts.get(labels) or self._begin(labels)
        counts[bisect_left(self.buckets, value)] += 1
        self.sums[labels] += value

    def _begin(self, labels: Labels) -> list[int]:
        self.sums[labels] = 0.0
        counts = self.counts[labels] = [0] * (len(self.buckets) + 1)
        return counts


class Collected(msgspec.Struct):
    """Compute the samples of a metric when it is scraped."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    collect: Callable[[], Iterable[Sample]]


class Registry:
    """Hold the metrics of one node. Requesting a name twice returns the same metric."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric | Histogram | Collected] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Metric:
        """Return a counter; one without labels is exposed from the start, as 0."""
        metric = self._metric("counter", name, help, labels)
        if not labels:
            metric.values.setdefault((), 0.0)
        return metric

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Metric:
        return self._metric("gauge", name, help, labels)

    def histogram(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = DEFAULT_BUCKETS,
    ) -> Histogram:
        metric = self.metrics.setdefault(name, Histogram(name, help, tuple(labels), tuple(buckets)))
        assert isinstance(metric, Histogram), name
        return metric

    def collected(
        self,
        kind: Literal["counter", "gauge"],
        name: str,
        help: str,
        labels: Sequence[str],
        collect: Callable[[], Iterable[Sample]],
    ) -> None:
        self.metrics[name] = Collected(kind, name, help, tuple(labels), collect)

    def _metric(
        self, kind: Literal["counter", "gauge"], name: str, help: str, labels: Sequence[str]
    ) -> Metric:
        metric = self.metrics.setdefault(name, Metric(kind, name, help, tuple(labels)))
        assert isinstance(metric, Metric), name
        return metric
