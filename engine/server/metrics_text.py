"""Writes metrics in Prometheus' text format 0.0.4.

The format is simple, while the client library would cost 14 MB of memory in an agent that needs nothing else
of it; the tests parse the text with that library.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.metrics import Collected, Histogram, Registry

NANO, MICRO, MILLI = 9, 6, 3
"""Decimal digits of values that are read in fractions of a unit."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(registry: Registry, *, prefix: str = "", without: tuple[str, ...] = ()) -> Iterator[str]:
    """Return the text of each metric whose name starts with `prefix` and with none of `without`, sorted by
    name.
    """
    for name in sorted(registry.metrics):
        if not name.startswith(prefix) or name.startswith(without):
            continue
        metric = registry.metrics[name]
        if isinstance(metric, Histogram):
            yield head(name, metric.help, "histogram") + "".join(_histogram(metric))
        else:
            samples: Iterable[tuple[tuple[str, ...], float]] = (
                metric.collect() if isinstance(metric, Collected) else metric.values.items()
            )
            yield family(name, metric.help, metric.kind, metric.labels, samples)


def family(
    name: str,
    help: str,
    kind: str,
    labels: tuple[str, ...],
    samples: Iterable[tuple[tuple[str, ...], float] | tuple[tuple[str, ...], float, int | None]],
) -> str:
    """Return one metric of simple values, each optionally with its time in milliseconds."""
    lines = []
    for values, value, *times in samples:
        moment = "".join(f" {at}" for at in times if at is not None)
        lines.append(f"{name}{_labels(labels, values)} {number(value)}{moment}\n")
    return head(name, help, kind) + "".join(lines)


def process_metrics() -> Iterator[str]:
    """Return what every Go process exports about itself; dashboards of the kubelet rely on it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    page = os.sysconf("SC_PAGE_SIZE")
    open_fds = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - cheaper than Path objects
    for kind, name, help, value in (
        ("counter", "process_cpu_seconds_total", "CPU time spent.", usage.ru_utime + usage.ru_stime),
        ("gauge", "process_open_fds", "Open file descriptors.", open_fds),
        (
            "gauge",
            "process_max_fds",
            "Limit of open descriptors.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
        ("gauge", "process_resident_memory_bytes", "Resident memory.", int(stat[21]) * page),
        ("gauge", "process_virtual_memory_bytes", "Virtual memory.", int(stat[20])),
        ("gauge", "process_start_time_seconds", "Unix time of the start.", process_started()),
    ):
        yield family(name, help, kind, (), [((), value)])


def process_started() -> float:
    """Return the start time of this process in Unix seconds."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # The start time counts the ticks since boot, suspended time included (proc(5)). The name in parentheses
    # before it may contain blanks and parentheses.
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + int(stat[19]) / os.sysconf("SC_CLK_TCK")


def head(name: str, help: str, kind: str) -> str:
    """Return the two header lines of a metric."""
    return f"# HELP {name} {help.translate(_HELP)}\n# TYPE {name} {kind}\n"


def _histogram(metric: Histogram) -> Iterator[str]:
    names = (*metric.labels, "le")
    for values, counts in metric.counts.items():
        total = 0
        for bound, count in zip((*metric.buckets, math.inf), counts, strict=True):
            total += count
            yield f"{metric.name}_bucket{_labels(names, (*values, number(bound)))} {total}\n"
        own = _labels(metric.labels, values)
        yield f"{metric.name}_sum{own} {number(metric.sums[values])}\n{metric.name}_count{own} {total}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return f"{{{labelled(names, values)}}}" if names else ""


def labelled(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return labels and values without the braces."""
    return ",".join(f'{name}="{value.translate(_LABEL)}"' for name, value in zip(names, values, strict=True))


def number(value: float) -> str:
    """Format a value."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    if math.isnan(value):
        return "NaN"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
