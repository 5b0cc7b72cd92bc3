"""Counts started sandboxes and containers, and failed starts, under the kubelet's metric names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.api.errors import Refused
from engine.api.pod import Container, Pod
from engine.metrics import Registry
from engine.node.images.pull import StartRefused


class StartCounts:
    """Count the starts of one node; a cancelled start does not count as a failure."""

    def __init__(self, registry: Registry) -> None:
        self._pods = registry.counter("kubelet_started_pods_total", "Sandboxes started.")
        self._pod_errors = registry.counter(
            "kubelet_started_pods_errors_total", "Sandboxes that could not be started."
        )
        self._sandboxes = registry.histogram(
            "kubelet_run_podsandbox_duration_seconds",
            "Time that the runtime took to run a sandbox, by runtime handler.",
            ["runtime_handler"],
        )
        self._sandbox_errors = registry.counter(
            "kubelet_run_podsandbox_errors_total",
            "Sandboxes that the runtime failed to run, by runtime handler.",
            ["runtime_handler"],
        )
        self._containers = registry.counter(
            "kubelet_started_containers_total", "Containers started.", ["container_type"]
        )
        self._container_errors = registry.counter(
            "kubelet_started_containers_errors_total",
            "Containers that could not be started, by the reason in their status.",
            ["container_type", "code"],
        )

    @contextmanager
    def sandbox(self, handler: str) -> Iterator[None]:
        """Count a call to the runtime that creates a sandbox."""
        self._pods.inc()
        began = time.monotonic()
        try:
            yield
        except Refused:
            self._pod_errors.inc()
            self._sandbox_errors.inc(handler)
            raise
        finally:
            self._sandboxes.observe(time.monotonic() - began, handler)

    @contextmanager
    def container(self, pod: Pod, container: Container) -> Iterator[None]:
        """Count everything that the start of a container takes."""
        kind = _kind(pod, container)
        self._containers.inc(kind)
        try:
            yield
        except StartRefused as error:
            self._container_errors.inc(kind, error.waiting.reason)
            raise


def _kind(pod: Pod, container: Container) -> str:
    if any(each.name == container.name for each in pod.init_containers):
        return "init_container"
    regular = any(each.name == container.name for each in pod.spec.containers)
    return "container" if regular else "ephemeral_container"
