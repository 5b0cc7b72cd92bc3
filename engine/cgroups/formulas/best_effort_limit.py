"""Computes how much CPU BestEffort pods may use together while others work. Pure.

The limit is a share of the machine minus what all others use. It falls at once and rises slowly; small
changes are ignored. The rule is that of Koordinator's CPU suppress.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

GROWTH: Final = 0.1
"""By which part of the machine the limit may grow between two readings."""
NOISE: Final = 0.01
"""Differences below this part of the machine are ignored."""
CUT, EASED = 0.9, 0.7
"""BestEffort pods count as limited above the first part of their limit, until they use less than
the second.
"""


class Used(NamedTuple):
    """Hold the milli-CPU used between two readings: by the whole machine, by all pods, and by BestEffort
    pods.
    """

    node: int
    pods: int
    best_effort: int


class BestEffortLimitRules(msgspec.Struct, frozen=True):
    """Hold the rules of the limit: the machine's milli-CPU, its system reservation, the percentage of the
    machine that may be in use with BestEffort pods, and the percentage that they always get.
    """

    capacity: int
    reserved: int
    percent: int
    floor_percent: int

    @property
    def whole(self) -> int:
        """Return the limit while nobody else uses anything."""
        return self.capacity * self.percent // 100 - self.reserved

    @property
    def floor(self) -> int:
        return self.capacity * self.floor_percent // 100

    def left(self, used: Used) -> int:
        """Return what the others leave, in milli-CPU. The system counts with at least its reservation."""
        others = max(used.pods - used.best_effort, 0)
        system = max(used.node - used.pods, self.reserved)
        return max(self.capacity * self.percent // 100 - others - system, self.floor)

    def ceiling(self, used: Used, before: int | None) -> int:
        """Return the next limit in milli-CPU; `before` is the current one."""
        limit = self.left(used)
        if before is None:
            return limit
        # A limit just below the whole would count as lowered for good.
        if abs(limit - before) < self.capacity * NOISE and limit != self.whole:
            return before
        return min(limit, before + round(self.capacity * GROWTH))

    def holds(self, ceiling: int, used: Used, held: bool) -> bool:
        """Tell whether a lowered limit keeps BestEffort pods from using more; `held` is the
        previous answer.
        """
        return ceiling < self.whole and used.best_effort > ceiling * (EASED if held else CUT)
