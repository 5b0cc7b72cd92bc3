"""Computes the recent CPU use of pods, by which a pool grows and shrinks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

READINGS = 6
"""A pool shrinks this many readings after its pods use less: a short pause does not move containers."""
FULL_PERCENT = 80
"""A pool grows when its pods use more than this share of its CPUs. A cpuset caps the use that can be
measured, so without a margin a busy pool would never grow.
"""
MILLI = 1000


class RecentCpuUse:
    """Compute the CPU use of pods in thousandths of a CPU from readings of their CPU seconds."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._recent: dict[str, deque[int]] = {}

    def add(self, now: float, seconds: Mapping[str, float]) -> None:
        """Add a reading at `now`: the CPU seconds of each pod by uid. Pods without one are forgotten."""
        before, self._last = self._last, {uid: (now, used) for uid, used in seconds.items()}
        for uid in self._recent.keys() - seconds.keys():
            del self._recent[uid]
        for uid, used in seconds.items():
            then, earlier = before.get(uid, (now, used))
            if now > then:
                recent = self._recent.setdefault(uid, deque(maxlen=READINGS))
                recent.append(max(round((used - earlier) * MILLI / (now - then)), 0))

    def demand(self, uid: str, requested: int) -> int:
        """Return the CPU that a pod needs: its highest recent use and a margin.

        It is not less than `requested` until the pod has been measured for `READINGS` readings.
        """
        recent = self._recent.get(uid, ())
        demand = -(-max(recent, default=0) * 100 // FULL_PERCENT)
        return demand if len(recent) == READINGS else max(demand, requested)
