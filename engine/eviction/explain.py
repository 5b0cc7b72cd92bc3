"""Describes for people what the eviction manager sees and would do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from engine.api.pod import Pod
from engine.api.qos import is_critical, qos_class
from engine.api.resources import ranking_request
from engine.eviction.layout import Layout, measured_parts
from engine.eviction.pressure import PressureTracker
from engine.eviction.signals import EPHEMERAL_STORAGE, MEMORY, NODEFS_AVAILABLE, PIDS, Observations
from engine.eviction.thresholds import Threshold
from engine.eviction.usage import PodUsage, rank
from engine.tables.pods import PodTable

SHOWN = 20


def explain(
    tracker: PressureTracker,
    layout: Layout,
    observations: Observations,
    table: PodTable,
    pods: Sequence[Pod],
    usage: dict[str, PodUsage],
    *,
    disk: bool,
) -> dict[str, Any]:
    """Return signals (bytes, inodes, process ids), thresholds with their distance (negative: met), and the
    first pods in the order of eviction by starved resource.
    """
    starved = {MEMORY: (), PIDS: ()} | (
        {EPHEMERAL_STORAGE: measured_parts(layout, NODEFS_AVAILABLE)} if disk else {}
    )
    return {
        "layout": layout,
        "conditions": list(tracker.conditions),
        "signals": {
            signal: {"available": o.available, "capacity": o.capacity} for signal, o in observations.items()
        },
        "thresholds": [_threshold(threshold, observations) for threshold in tracker.thresholds],
        "first": {
            resource: [
                _candidate(place, pod, amount, resource)
                for place, (pod, amount) in enumerate(
                    islice(rank(table, pods, usage, resource, parts), SHOWN), 1
                )
            ]
            for resource, parts in starved.items()
        },
    }


def _threshold(threshold: Threshold, observations: Observations) -> dict[str, Any]:
    observed = observations.get(threshold.signal)
    limit = threshold.limit(observed.capacity) if observed is not None else None
    return {
        "signal": threshold.signal,
        "value": str(threshold.value),
        "gracePeriod": threshold.grace_period,
        "minReclaim": str(threshold.min_reclaim) if threshold.min_reclaim is not None else None,
        "limit": limit,
        "distance": observed.available - limit if observed is not None and limit is not None else None,
    }


def _candidate(place: int, pod: Pod, amount: int | None, resource: str) -> dict[str, Any]:
    request = ranking_request(pod, resource).value if resource != PIDS else None
    return {
        "place": place,
        "pod": pod.full_name,
        "uid": pod.uid,
        "qos": qos_class(pod),
        "priority": pod.spec.priority or 0,
        "usage": amount,
        "request": request,
        "critical": is_critical(pod),
        "why": reason_for_place(pod, amount, request),
    }


def reason_for_place(pod: Pod, amount: int | None, request: int | None) -> str:
    """Explain a pod's rank in the order of eviction; `request` is None for processes."""
    if is_critical(pod):
        return "critical: never evicted"
    if amount is None:
        return "its usage is unknown"
    priority = f"priority {pod.spec.priority or 0}"
    if request is None:
        return f"{priority}, {amount} tasks"
    if amount > request:
        return f"uses {amount - request} bytes more than it requests, {priority}"
    return f"stays within its request, {priority}"
