"""Counts in-place resizes and measures how long they take, under the kubelet's metric names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from engine.api.pod import Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, MEMORY
from engine.metrics import Registry

RESIZE_BUCKETS: Final = (
    *(10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000),
)
Trigger = Literal["pod_resized", "pods_removed", "pod_terminated", "periodic_retry"]
"""The causes of evaluating deferred resizes again; the last one covers everything that is not a pod."""
Operation = Literal["add", "remove", "increase", "decrease"]


def requested_resizes(old: Pod, new: Pod) -> Iterator[tuple[str, str, Operation]]:
    """Yield resource, `requests` or `limits`, and operation of each requested change of a container."""
    for before, after in zip(old.all_containers, new.all_containers, strict=True):
        for resource in (MEMORY, CPU):
            for part, then, now in (
                ("requests", before.requests, after.requests),
                ("limits", before.limits, after.limits),
            ):
                operation = _operation(then.get(resource, ZERO), now.get(resource, ZERO))
                if operation is not None:
                    yield resource, part, operation


def _operation(before: Quantity, after: Quantity) -> Operation | None:
    if before == after:
        return None
    if before == ZERO:
        return "add"
    if after == ZERO:
        return "remove"
    return "increase" if after > before else "decrease"


class ResizeMetrics:
    """Count the resizes of one node. `trigger` is the reason why deferred ones are evaluated again."""

    def __init__(self, registry: Registry) -> None:
        self.trigger: Trigger = "periodic_retry"
        self._requested = registry.counter(
            "kubelet_container_requested_resizes_total",
            "Requested resizes of containers, each resource by itself.",
            ["resource", "requirement", "operation"],
        )
        self._infeasible = registry.counter(
            "kubelet_pod_infeasible_resizes_total",
            "Resizes that are impossible on this node.",
            ["reason_detail"],
        )
        self._accepted = registry.counter(
            "kubelet_pod_deferred_accepted_resizes_total",
            "Resizes that were accepted after they had been deferred.",
            ["retry_trigger"],
        )
        self._duration = registry.histogram(
            "kubelet_pod_resize_duration_milliseconds",
            "Duration in milliseconds to actuate a pod resize.",
            ["success"],
            RESIZE_BUCKETS,
        )

    def requested(self, old: Pod, new: Pod) -> None:
        """Count what a new spec of a pod resizes."""
        for labels in requested_resizes(old, new):
            self._requested.inc(*labels)

    def infeasible(self, detail: str) -> None:
        """Count a resize that is infeasible; `detail` is a label of the kubelet's."""
        self._infeasible.inc(detail)

    def accepted_after_waiting(self) -> None:
        """Count a deferred resize that begins."""
        self._accepted.inc(self.trigger)

    def carried_out(self, seconds: float, *, success: bool) -> None:
        """Record one attempt to write a resize to cgroups and containers, in milliseconds."""
        self._duration.observe(seconds * 1000, str(success).lower())
