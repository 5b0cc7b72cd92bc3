"""Decides from observations which thresholds are met, for how long, and which node conditions they raise.

Deterministic: no clock, no I/O. A threshold that was acted on stays met until the available amount also
covers its minimum reclaim. A node condition stays for the transition period after it was last observed.
Source: kubelet v1.32 eviction manager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from engine.eviction.signals import (
    CONDITION_OF,
    DISK_PRESSURE,
    MEMORY_PRESSURE,
    MEMORY_SIGNALS,
    PID_PRESSURE,
    Observations,
    SignalObservation,
)
from engine.eviction.thresholds import Threshold

CONDITIONS: Final = (MEMORY_PRESSURE, DISK_PRESSURE, PID_PRESSURE)


def is_met(threshold: Threshold, observation: SignalObservation, *, reclaimed: bool = False) -> bool:
    """Tell whether less is available than the threshold allows; with `reclaimed`, less than that plus its
    minimum reclaim.
    """
    return observation.available < threshold.limit(observation.capacity, reclaimed=reclaimed)


def met(
    thresholds: Iterable[Threshold], observations: Observations, *, reclaimed: bool = False
) -> list[Threshold]:
    """Return the met thresholds. An unreadable signal meets none."""
    return [
        threshold
        for threshold in thresholds
        if threshold.signal in observations
        and is_met(threshold, observations[threshold.signal], reclaimed=reclaimed)
    ]


def by_urgency(thresholds: Sequence[Threshold]) -> list[Threshold]:
    """Sort memory before everything else, otherwise as configured."""
    return sorted(thresholds, key=lambda threshold: threshold.signal not in MEMORY_SIGNALS)


class Pressure(NamedTuple):
    """Hold the result of one round.

    `act_on`: thresholds to relieve now, most urgent first; `waiting`: met thresholds in their grace period,
    with the seconds left; `raised` and `cleared`: changed node conditions.
    """

    act_on: tuple[Threshold, ...]
    waiting: tuple[tuple[Threshold, float], ...]
    conditions: tuple[str, ...]
    raised: tuple[str, ...]
    cleared: tuple[str, ...]


class PressureTracker(msgspec.Struct):
    """Remember state between two rounds."""

    thresholds: Sequence[Threshold]
    transition_period: float
    first_met: dict[Threshold, float] = msgspec.field(default_factory=dict)
    last_seen: dict[str, float] = msgspec.field(default_factory=dict)
    acted_on: list[Threshold] = msgspec.field(default_factory=list)
    conditions: tuple[str, ...] = ()
    last: Observations = msgspec.field(default_factory=dict)

    def update(self, observations: Observations, now: float) -> Pressure:
        """Take one set of observations; `now` is in seconds of a monotonic clock."""
        current = met(self.thresholds, observations)
        current += [t for t in met(self.acted_on, observations, reclaimed=True) if t not in current]
        self.first_met = {t: self.first_met.get(t, now) for t in current}
        for threshold in current:
            self.last_seen[CONDITION_OF[threshold.signal]] = now
        # A condition observed in this round holds even if the transition period is 0.
        before, self.conditions = (
            self.conditions,
            tuple(
                c for c in CONDITIONS
                if c in self.last_seen and (
                    now - self.last_seen[c] < self.transition_period or self.last_seen[c] == now
                )
            ),
        )  # fmt: skip
        # Nothing is evicted for a reading that was acted on before (kubelet: `thresholdsUpdatedStats`).
        ripe = [t for t in current if now - self.first_met[t] >= t.grace_period]
        self.acted_on = ripe
        fresh = [
            t for t in ripe
            if t.signal not in self.last or observations[t.signal].at > self.last[t.signal].at
        ]  # fmt: skip
        self.last = observations
        return Pressure(
            tuple(by_urgency(fresh)),
            tuple((t, t.grace_period - (now - self.first_met[t])) for t in current if t not in ripe),
            self.conditions,
            tuple(c for c in self.conditions if c not in before),
            tuple(c for c in before if c not in self.conditions),
        )

    def remembered(self) -> dict[str, Any] | None:
        """Return what the next rounds depend on, ready for JSON; None while thresholds are acted on."""
        if self.acted_on:
            return None
        first = [(t.signal, t.grace_period, round(at, 6)) for t, at in self.first_met.items()]
        last = {condition: round(at, 6) for condition, at in self.last_seen.items()}
        return {"firstMet": first, "lastSeen": last, "conditions": self.conditions}

    def recall(self, remembered: Mapping[str, Any]) -> None:
        """Restore what `remembered` returned, for the thresholds that there are."""
        first = {(signal, grace): at for signal, grace, at in remembered["firstMet"]}
        keys = {t: (t.signal, t.grace_period) for t in self.thresholds}
        self.first_met = {t: first[key] for t, key in keys.items() if key in first}
        self.last_seen = dict(remembered["lastSeen"])
        self.conditions = tuple(remembered["conditions"])
        self.acted_on, self.last = [], {}

    def restart_grace(self, threshold: Threshold) -> None:
        """Restart the grace period of a threshold at the next round, because an action takes effect later."""
        self.first_met.pop(threshold, None)

    def is_relieved(self, observations: Observations) -> bool:
        """Tell whether no threshold is met any longer, including minimum reclaims."""
        return not met(self.thresholds, observations, reclaimed=True)
