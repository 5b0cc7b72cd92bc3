"""Repeat the rounds of eviction of a recorded node from its signals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.eviction import signals
from engine.eviction.layout import Layout, with_container_filesystem
from engine.eviction.pressure import Pressure, PressureTracker
from engine.eviction.signals import CONDITION_OF, RESOURCE_OF, Observations, SignalObservation
from engine.eviction.thresholds import thresholds_from_config
from engine.eviction.usage import Disk, PodUsage, rank
from engine.plan.eviction.eviction_course import limits
from engine.plan.replay.recorded import Run
from engine.tables.pods import PodTable

_LAYOUTS: Final[Mapping[str, Layout]] = {"shared": "shared", "imagefs": "imagefs", "split": "split"}
Freed = Mapping[str, int]
"""By node condition, how much more is available than was recorded; negative: less."""


class PressureReplay:
    """Remember thresholds and conditions under a configuration."""

    def __init__(self, config: KubeletConfiguration) -> None:
        self._configured = thresholds_from_config(config)
        self._tracker = PressureTracker(self._configured, float(config.eviction_pressure_transition_period))
        self._recalled: Mapping[str, Any] | None = None

    def recall(self, remembered: Mapping[str, Any]) -> None:
        """Restore what the agent's own rules remembered, from the next round on."""
        self._recalled = remembered

    @property
    def conditions(self) -> Sequence[str]:
        return self._tracker.conditions

    @property
    def quiet(self) -> bool:
        """Tell whether a round in which no threshold is met would change nothing."""
        tracker = self._tracker
        return self._recalled is None and not (tracker.first_met or tracker.acted_on or tracker.conditions)

    def rounds_that_matter(self, run: Run) -> NDArray[np.int64]:
        """Return the rounds in which a threshold is met, or would not yet be relieved."""
        self._set_layout(run.name.partition(" ")[2])
        met = np.zeros(len(run), bool)
        for threshold in self._tracker.thresholds:
            if threshold.signal in run.keys:
                at = run.keys.index(threshold.signal)
                least = limits(threshold, run.capacity[:, at], reclaimed=True)
                met |= run.available[:, at] < least
        return np.flatnonzero(met)

    def look(self, run: Run, at: int, freed: Freed) -> Pressure:
        """Take one round."""
        self._set_layout(run.name.partition(" ")[2])
        if self._recalled is not None:
            # Only now, because the thresholds depend on the layout of the disks.
            self._tracker.recall(self._recalled)
            self._recalled = None
        read = int(run.values[at, 1]) / 1e6
        observed: Observations = {
            key: SignalObservation(available + _of(freed, key), capacity, read)
            for key, available, capacity in zip(
                run.keys, run.available[at].tolist(), run.capacity[at].tolist(), strict=True
            )
        }
        return self._tracker.update(observed, int(run.values[at, 0]) / 1e6)

    def _set_layout(self, name: str) -> None:
        layout = _LAYOUTS.get(name)
        wanted = (
            with_container_filesystem(self._configured, layout) if layout is not None else self._configured
        )
        if list(self._tracker.thresholds) != wanted:
            self._tracker.thresholds = wanted


def _of(freed: Freed, signal: str) -> int:
    return 0 if "inodes" in signal else freed.get(CONDITION_OF[signal], 0)


def eviction_order(
    pods: Sequence[Pod], used: Mapping[str, int], signal: str
) -> Iterator[tuple[Pod, int | None]]:
    """Yield pods that may be evicted, in order; `used` are the amounts of the starved resource by uid, and a
    pod that it lacks has no statistics.
    """
    resource = RESOURCE_OF[signal]
    usage = {uid: _usage(amount, resource) for uid, amount in used.items()}
    ranked = rank(PodTable.from_pods(pods), pods, usage, resource, ("volumes",))
    return ((pod, amount) for pod, amount in ranked if not is_critical(pod))


def _usage(amount: int, resource: str) -> PodUsage:
    if resource == signals.MEMORY:
        return PodUsage(memory=amount)
    if resource == signals.PIDS:
        return PodUsage(processes=amount)
    disk = Disk(inodes=amount) if resource == signals.INODES else Disk(amount)
    return PodUsage(volumes={"": disk}, disk_known=True)
