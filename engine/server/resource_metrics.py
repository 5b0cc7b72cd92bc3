"""`/metrics/resource`: the kubelet's resource metrics, from its stats summary."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from engine.server.metrics_text import family

_Sample = tuple[tuple[str, ...], float, int | None]
_POD = ("namespace", "pod")
_CONTAINER = ("container", "namespace", "pod")


def resource_metrics(summary: dict[str, Any], read_at: float = 0.0) -> Iterator[str]:
    """The metrics that a metrics-server scrapes. Values that the summary lacks are left out.

    Each has the time of its reading, from which rates are made: `read_at` (Unix seconds) is that of what was
    read in the same second, which is all that a summary says.
    """
    node, pods = summary.get("node") or {}, summary.get("pods") or []
    containers = [
        ((container["name"], *_pod_labels(pod)), container)
        for pod in pods
        for container in pod.get("containers") or []
    ]
    by_pod = [(_pod_labels(pod), pod) for pod in pods]
    for prefix, labels, rows in (
        ("node", (), [((), node)]),
        ("pod", _POD, by_pod),
        ("container", _CONTAINER, containers),
    ):
        yield family(
            f"{prefix}_cpu_usage_seconds_total",
            f"Cumulative CPU time of the {prefix} in core-seconds",
            "counter",
            labels,
            _samples(rows, "cpu", "usageCoreNanoSeconds", 1e-9, read_at),
        )
        yield family(
            f"{prefix}_memory_working_set_bytes",
            f"Working set of the {prefix} in bytes",
            "gauge",
            labels,
            _samples(rows, "memory", "workingSetBytes", 1, read_at),
        )
        yield family(
            f"{prefix}_swap_usage_bytes",
            f"Swap in use by the {prefix} in bytes",
            "gauge",
            labels,
            _samples(rows, "swap", "swapUsageBytes", 1, read_at),
        )
    limits = (
        (labels, {"swap": {**swap, "limit": swap["swapAvailableBytes"] + swap.get("swapUsageBytes", 0)}})
        for labels, container in containers
        if "swapAvailableBytes" in (swap := container.get("swap") or {})
    )
    yield family(
        "container_swap_limit_bytes",
        "Swap that the container may use in bytes",
        "gauge",
        _CONTAINER,
        _samples(list(limits), "swap", "limit", 1, read_at),
    )
    yield family(
        "container_start_time_seconds",
        "Start of the container in Unix seconds",
        "gauge",
        _CONTAINER,
        [
            (labels, _seconds(container["startTime"]))
            for labels, container in containers
            if container.get("startTime") and _is_measured(container)
        ],
    )
    yield scrape_error(0)


def scrape_error(value: int) -> str:
    """The last of the page, or all of it where nothing could be read."""
    return family(
        "resource_scrape_error", "1 if the metrics could not be collected", "gauge", (), [((), value)]
    )


def _is_measured(container: dict[str, Any]) -> bool:
    """A metrics-server leaves out a whole pod for one container of which it learns the start and no use."""
    cpu, memory = container.get("cpu") or {}, container.get("memory") or {}
    return "usageCoreNanoSeconds" in cpu or "workingSetBytes" in memory


def _pod_labels(pod: dict[str, Any]) -> tuple[str, str]:
    reference = pod["podRef"]
    return reference["namespace"], reference["name"]


def _samples(
    rows: list[tuple[Any, dict[str, Any]]], section: str, field: str, scale: float, read_at: float
) -> Iterator[_Sample]:
    for labels, row in rows:
        part = row.get(section) or {}
        value = part.get(field)
        if value is not None:
            yield labels, value * scale, _milliseconds(part.get("time"), read_at)


def _milliseconds(time: str | None, read_at: float) -> int | None:
    if time is None:
        return None
    second = _seconds(time)
    return int((read_at if int(read_at) == second else second) * 1000)


@lru_cache(64)
def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
