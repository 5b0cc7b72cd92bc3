"""Exports `prober_*` metrics from the native counters, which are read only by a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, ItemsView, Iterator
from functools import partial
from typing import Any, Literal

from engine._fast.probing.loop import BOUNDS, LATENESS, ProbeLoop
from engine.api.pod import Pod
from engine.metrics import Histogram, Labels, Registry, Sample
from engine.probes.beyond import features
from engine.probes.spec import ProbeSpec

TYPES = {"liveness": "Liveness", "readiness": "Readiness", "startup": "Startup"}


class _Scraped(dict[Labels, list[int]]):
    """Bucket counts that are read afresh whenever they are listed."""

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__()
        self._read = read

    def items(self) -> ItemsView[Labels, list[int]]:  # type: ignore[override]
        self._read()
        return ItemsView(self)


class ProbeMetrics:
    """Register the metrics of `/metrics/probes`. `detail`: container, pod (summed) or none.

    Per pod, the `container` label stays and is empty, so that queries over pods work unchanged.
    """

    def __init__(
        self,
        registry: Registry,
        native: ProbeLoop,
        detail: str,
        labels_of: Callable[[int], tuple[Pod, ProbeSpec]],
    ) -> None:
        self._native = native
        self._by_pod = detail == "pod"
        self._labels_of = labels_of
        self.lateness = registry.histogram(
            "kubengine_probe_lateness_seconds",
            "Delay between a probe's due time and its start.",
            buckets=LATENESS,
        )
        self.lateness.counts = _Scraped(self._read_lateness)
        self._expose_loop(registry)
        if detail != "none":
            self._expose_probes(registry)

    def _expose_loop(self, registry: Registry) -> None:
        registry.collected(
            "counter",
            "kubengine_probe_late_total",
            "Probes that started more than 10 ms late.",
            (),
            self._late,
        )
        registry.collected(
            "counter",
            "kubengine_probe_kept_waiting_seconds_total",
            "Time for which the agent could not run probes; probes that time out get it back.",
            (),
            partial(self._of_loop, "kept_waiting"),
        )
        registry.collected(
            "counter",
            "kubengine_probe_networks_entered_total",
            "Times that the prober entered a pod's network namespace.",
            (),
            partial(self._of_loop, "networks_entered"),
        )
        registry.collected(
            "counter",
            "kubengine_probe_early_failures_total",
            "Probe failures that did not count because the container was starting.",
            (),
            partial(self._of_loop, "early_failures"),
        )
        registry.collected(
            "gauge",
            "kubengine_probes_beyond",
            "Probes that use what the kubelet does not have, and commands that another kind of probe "
            "could replace.",
            ("feature",),
            self._features,
        )

    def _expose_probes(self, registry: Registry) -> None:
        registry.collected(
            "counter",
            "prober_probe_total",
            "Cumulative number of a liveness, readiness or startup probe for a container by result.",
            ("probe_type", "result", "container", "pod", "namespace", "pod_uid"),
            self._totals,
        )
        self.durations: Histogram = registry.histogram(
            "prober_probe_duration_seconds",
            "Duration in seconds for a probe response.",
            ("probe_type", "container", "pod", "namespace"),
            buckets=BOUNDS,
        )
        self.durations.counts = _Scraped(self._read_durations)

    def _features(self) -> list[Sample]:
        specs = (self._labels_of(row[0])[1] for row in self._native.counters())
        counts = Counter(name for spec in specs for name in features(spec))
        return [((name,), float(count)) for name, count in sorted(counts.items())]

    def _rows(self) -> Iterator[tuple[str, str, Pod, Any]]:
        for row in self._native.counters():
            pod, spec = self._labels_of(row[0])
            yield TYPES[spec.type], "" if self._by_pod else spec.container, pod, row

    def _totals(self) -> list[Sample]:
        totals: dict[Labels, float] = {}
        for type, container, pod, (_, outcomes, _, _) in self._rows():
            success, failure, warning, unknown, _ = outcomes
            meta = pod.metadata
            rest = (container, meta.name, meta.namespace or "default", meta.uid)
            for result, count in (("successful", success + warning), ("failed", failure + unknown)):
                if count:
                    labels = (type, result, *rest)
                    totals[labels] = totals.get(labels, 0) + count
        return list(totals.items())

    def _read_durations(self) -> None:
        counts, sums = self.durations.counts, self.durations.sums
        counts.clear()
        sums.clear()
        for type, container, pod, (_, _, buckets, total) in self._rows():
            if any(buckets):
                labels = (type, container, pod.metadata.name, pod.metadata.namespace or "default")
                sums[labels] = sums.get(labels, 0.0) + total
                before = counts.get(labels)
                counts[labels] = [a + b for a, b in zip(before, buckets, strict=True)] if before else buckets

    def _read_lateness(self) -> None:
        stats = self._native.stats()
        self.lateness.counts[()] = stats["lateness_buckets"]
        self.lateness.sums[()] = stats["lateness_sum"]

    def _of_loop(self, name: Literal["networks_entered", "early_failures", "kept_waiting"]) -> list[Sample]:
        return [((), float(self._native.stats()[name]))]

    def _late(self) -> list[Sample]:
        return [((), float(self._native.stats()["late"]))]
