"""How much CPU BestEffort pods may use together while others work. Pure.

What is left below a share of the machine when all others have what they use; it shrinks at once and grows
slowly, and what hardly differs is left as it is. Source of the rule: Koordinator's CPU suppress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

GROWTH: Final = 0.1
"""By how much of the machine the ceiling may grow from one look to the next."""
NOISE: Final = 0.01
"""A difference below this part of the machine is none."""
CUT, EASED = 0.9, 0.7
"""BestEffort pods that use more than the one part of their ceiling are held by it, until they use less than
the other."""


class Used(NamedTuple):
    """Milli-CPU in use between two looks: by the whole machine, by all pods, by BestEffort ones."""

    node: int
    pods: int
    best_effort: int


@dataclass(frozen=True, slots=True)
class SqueezeRules:
    """Milli-CPU that the machine has and that of it is reserved for the system; the percentage of the machine
    that may be in use with BestEffort pods, and the one that they always get."""

    capacity: int
    reserved: int
    percent: int
    floor_percent: int

    @property
    def whole(self) -> int:
        """The ceiling while nobody else uses anything."""
        return self.capacity * self.percent // 100 - self.reserved

    @property
    def floor(self) -> int:
        return self.capacity * self.floor_percent // 100

    def room(self, used: Used) -> int:
        """What the others leave, in milli-CPU. The system counts with what is reserved for it at least."""
        others = max(used.pods - used.best_effort, 0)
        system = max(used.node - used.pods, self.reserved)
        return max(self.capacity * self.percent // 100 - others - system, self.floor)

    def ceiling(self, used: Used, before: int | None) -> int:
        """The next ceiling in milli-CPU; `before` is the one that was in force."""
        room = self.room(used)
        if before is None:
            return room
        if abs(room - before) < self.capacity * NOISE:
            return before
        return min(room, before + round(self.capacity * GROWTH))

    def holds(self, ceiling: int, used: Used, held: bool) -> bool:
        """Whether a ceiling that others have lowered keeps BestEffort pods from what they would use; `held`:
        whether it did at the last look."""
        return ceiling < self.whole and used.best_effort > ceiling * (EASED if held else CUT)
