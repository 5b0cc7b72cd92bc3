"""Counts started sandboxes and containers, and failed starts, under the kubelet's metric names."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from engine.api.errors import Refused
from engine.api.pod import Container, Pod
from engine.metrics import Registry
from engine.node.images.pull import StartRefused

MOUNT_FAILED: Final = "ImageVolumeMountFailed"
"""How a runtime's refusal to mount an image begins (`k8s.io/cri-api/pkg/errors`)."""


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

        self._namespaced = registry.counter(
            "kubelet_started_user_namespaced_pods_total", "Sandboxes with a user namespace started."
        )
        self._namespaced_errors = registry.counter(
            "kubelet_started_user_namespaced_pods_errors_total",
            "Sandboxes with a user namespace that could not be started.",
        )
        self._image_volumes = registry.counter(
            "kubelet_image_volume_requested_total", "Number of requested image volumes."
        )
        self._mounted = registry.counter(
            "kubelet_image_volume_mounted_succeed_total", "Number of successful image volume mounts."
        )
        self._mount_errors = registry.counter(
            "kubelet_image_volume_mounted_errors_total", "Number of failed image volume mounts."
        )

    @contextmanager
    def image_volumes(self, container: Container, volumes: Collection[str]) -> Iterator[None]:
        """Count the image volumes of a container that is created.

        Any other refusal counts as a successful mount, as with a kubelet.
        """
        if not volumes:
            yield
            return
        self._image_volumes.inc(by=len(volumes))
        counter = self._mounted
        try:
            yield
        except Refused as error:
            if error.message.startswith(MOUNT_FAILED):
                counter = self._mount_errors
            raise
        finally:
            counter.inc(by=sum(mount.name in volumes for mount in container.volume_mounts or ()))

    @contextmanager
    def sandbox(self, handler: str, *, namespaced: bool = False) -> Iterator[None]:
        """Count a call to the runtime that creates a sandbox; `namespaced` if it has its own users."""
        self._pods.inc()
        if namespaced:
            self._namespaced.inc()
        began = time.monotonic()
        try:
            yield
        except Refused:
            self._pod_errors.inc()
            if namespaced:
                self._namespaced_errors.inc()
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
