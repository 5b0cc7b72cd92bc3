"""Wakes the eviction manager when the kernel reports that memory runs short, before its next round.

`usage_events` implements this for cgroup v1, `pressure_events` for v2. If the kernel offers neither, only
the manager's interval remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.api.errors import KubengineError
from engine.eviction.pressure_events import PressureEvents
from engine.eviction.readings import SignalReader
from engine.eviction.signals import ALLOCATABLE_MEMORY_AVAILABLE, MEMORY_AVAILABLE, Observations
from engine.eviction.thresholds import Threshold
from engine.eviction.usage_events import UsageEvents
from engine.host.cgroupfs.mounts import Mounts


def memory_events(cgroup: str, wake: Callable[[], None], mounts: Mounts) -> UsageEvents | PressureEvents:
    """Return the watcher of one cgroup for the version of the hierarchies."""
    kind = UsageEvents if mounts.version == 1 else PressureEvents
    return kind(mounts.directory("memory", cgroup), wake)


class MemoryNotifiers:
    """Watch cgroups of one node: its own and that of all pods, if thresholds name them."""

    def __init__(
        self, reader: SignalReader, thresholds: Sequence[Threshold], wake: Callable[[], None]
    ) -> None:
        self._reader, self._wake = reader, wake
        self._thresholds = {
            signal: [threshold for threshold in thresholds if threshold.signal == signal]
            for signal in (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY_AVAILABLE)
        }
        self._notifiers: dict[str, UsageEvents | PressureEvents] = {}

    def start(self) -> None:
        view = self._reader.view
        watched = {MEMORY_AVAILABLE: view.cgroup, ALLOCATABLE_MEMORY_AVAILABLE: view.pods_cgroup}
        for signal, cgroup in watched.items():
            if cgroup is not None and self._thresholds[signal]:
                self._notifiers[signal] = memory_events(cgroup, self._wake, view.mounts)
                self._notifiers[signal].start()

    def stop(self) -> None:
        for notifier in self._notifiers.values():
            notifier.stop()
        self._notifiers.clear()

    def arm(self, observations: Observations) -> None:
        """Adjust v1 notifications to the page cache: they count usage, while thresholds count the
        working set.
        """
        for signal, notifier in self._notifiers.items():
            observed = observations.get(signal)
            group = self._reader.node if signal == MEMORY_AVAILABLE else self._reader.pods
            if observed is None or group is None:
                continue
            try:
                cache = group.inactive_file()
            except (OSError, KubengineError):
                continue
            used = observed.capacity + cache
            notifier.arm({used - t.limit(observed.capacity) for t in self._thresholds[signal]})
