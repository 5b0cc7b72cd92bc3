"""`/metrics/resource`: the kubelet's resource metrics, from its stats summary."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from engine.server.metrics_text import family

_Sample = tuple[tuple[str, ...], float]
_POD = ("namespace", "pod")
_CONTAINER = ("container", "namespace", "pod")


def resource_metrics(summary: dict[str, Any]) -> Iterator[str]:
    """The metrics that a metrics-server scrapes. Values that the summary lacks are left out."""
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
            _samples(rows, "cpu", "usageCoreNanoSeconds", 1e-9),
        )
        yield family(
            f"{prefix}_memory_working_set_bytes",
            f"Working set of the {prefix} in bytes",
            "gauge",
            labels,
            _samples(rows, "memory", "workingSetBytes", 1),
        )
        yield family(
            f"{prefix}_swap_usage_bytes",
            f"Swap in use by the {prefix} in bytes",
            "gauge",
            labels,
            _samples(rows, "swap", "swapUsageBytes", 1),
        )
    yield family(
        "container_start_time_seconds",
        "Start of the container in Unix seconds",
        "gauge",
        _CONTAINER,
        [
            (labels, datetime.fromisoformat(container["startTime"]).timestamp())
            for labels, container in containers
            if container.get("startTime")
        ],
    )
    yield family("resource_scrape_error", "1 if the metrics could not be collected", "gauge", (), [((), 0)])


def _pod_labels(pod: dict[str, Any]) -> tuple[str, str]:
    reference = pod["podRef"]
    return reference["namespace"], reference["name"]


def _samples(
    rows: list[tuple[Any, dict[str, Any]]], section: str, field: str, scale: float
) -> Iterator[_Sample]:
    for labels, row in rows:
        value = (row.get(section) or {}).get(field)
        if value is not None:
            yield labels, value * scale
