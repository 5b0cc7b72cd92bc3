"""Counts volumes and measures their operations under the kubelet's metric names.

Names, labels and buckets are those of kubelet v1.36 (`pkg/kubelet/volumemanager/metrics`,
`pkg/volume/util/metrics.go`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from engine.api.objects.storage import CSIPersistentVolume, LocalVolume
from engine.api.pod import HostPathVolume, Volume
from engine.api.references import FCVolume, ISCSIVolume, NFSVolume
from engine.metrics import Registry, Sample
from engine.node.volumes import agent_written
from engine.node.volumes.claims import BoundVolume, in_tree_source

MOUNT, MAP, UNMOUNT = "volume_mount", "map_volume", "volume_unmount"
ACTUAL, DESIRED = "actual_state_of_world", "desired_state_of_world"
NOT_KNOWN: Final = "N/A"
_OF_KUBERNETES: Final = "kubernetes.io/"
_IN_TREE: Final = {NFSVolume: "nfs", ISCSIVolume: "iscsi", FCVolume: "fc"}
_SUCCESS, _FAILURE = "success", "fail-unknown"
_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)


def plugin_name(volume: Volume, bound: object) -> str:
    """Return the kubelet's plugin name of a volume; `bound` is what its claim is bound to, if known."""
    source = bound.source if isinstance(bound, BoundVolume) else None
    if volume.csi is not None:
        return f"{_OF_KUBERNETES}csi:{volume.csi.driver}"
    if volume.host_path is not None or isinstance(source, HostPathVolume):
        return f"{_OF_KUBERNETES}host-path"
    if volume.empty_dir is not None:
        return f"{_OF_KUBERNETES}empty-dir"
    if isinstance(source, LocalVolume):
        return f"{_OF_KUBERNETES}local-volume"
    if isinstance(source, CSIPersistentVolume):
        return f"{_OF_KUBERNETES}csi:{source.driver}"
    if (in_tree := in_tree_source(volume, bound)) is not None:
        return f"{_OF_KUBERNETES}{_IN_TREE[type(in_tree)]}"
    directory = agent_written.plugin_of(volume)
    return directory.replace("~", "/") if directory is not None else NOT_KNOWN


def mounting(bound: object) -> str:
    """Return the operation name for mounting a volume."""
    return MAP if isinstance(bound, BoundVolume) and bound.block else MOUNT


class Durations:
    """Record the durations of operations, from any thread."""

    def __init__(self) -> None:
        self.recorded: list[tuple[float, str, str, bool]] = []

    @contextmanager
    def of(self, plugin: str, operation: str) -> Iterator[None]:
        """Record how long the block takes, and whether it fails."""
        began, done = time.monotonic(), False
        try:
            yield
            done = True
        finally:
            self.recorded.append((time.monotonic() - began, plugin, operation, done))


class PodVolumeCounts(Protocol):
    """Count the volumes of one pod; `removing` is true while they are being removed."""

    @property
    def removing(self) -> bool: ...

    def plugins(self) -> Iterable[tuple[str, bool]]:
        """Return the plugin of each volume, and whether the volume is mounted."""
        ...


class VolumeCounts:
    """Count the volumes of all pods."""

    def __init__(self, registry: Registry, pods: Callable[[], Iterable[PodVolumeCounts]]) -> None:
        self._duration = registry.histogram(
            "storage_operation_duration_seconds",
            "Time taken to set up a volume, or to remove all volumes of a pod.",
            ["volume_plugin", "operation_name", "status", "migrated"],
            buckets=_BUCKETS,
        )

        def volumes() -> Iterator[Sample]:
            counts: Counter[tuple[str, str]] = Counter()
            for pod in pods():
                for plugin, is_mounted in pod.plugins():
                    counts[plugin, ACTUAL] += is_mounted
                    counts[plugin, DESIRED] += not pod.removing
            yield from sorted((labels, count) for labels, count in counts.items() if count)

        registry.collected(
            "gauge",
            "volume_manager_total_volumes",
            "Volumes that pods should have (desired_state_of_world), and those that they have.",
            ["plugin_name", "state"],
            volumes,
        )

    @contextmanager
    def timed(self) -> Iterator[Durations]:
        """Yield a recorder for operations in any thread; this thread observes them when the block ends."""
        durations = Durations()
        try:
            yield durations
        finally:
            # The registry belongs to the event loop's thread; other threads only append to the list.
            for seconds, plugin, operation, done in durations.recorded:
                status = _SUCCESS if done else _FAILURE
                self._duration.observe(seconds, plugin, operation, status, "false")
