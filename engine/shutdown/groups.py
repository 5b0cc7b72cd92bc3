"""Determines the order in which pods end at a shutdown, and the time of each group. Pure.

Source: kubelet v1.36 (`nodeshutdown_manager.go`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod

USUAL_PRIORITY: Final = 0
SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000


class Period(msgspec.Struct, frozen=True):
    """Hold the grace period in seconds of pods with this priority, up to the priority of the next period."""

    priority: int
    seconds: int


class Group(msgspec.Struct, frozen=True):
    period: Period
    pods: Sequence[Pod]


def shutdown_periods(config: KubeletConfiguration) -> list[Period]:
    """Return the periods from the lowest priority up; empty if a shutdown does not wait for pods."""
    if not config.gate("GracefulNodeShutdown", True):
        return []
    listed = config.shutdown_grace_period_by_pod_priority
    if listed and config.gate("GracefulNodeShutdownBasedOnPodPriority", True):
        periods = [Period(each.priority, each.shutdown_grace_period_seconds) for each in listed]
        return sorted(periods, key=lambda period: period.priority)
    whole, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    if whole <= 0:
        return []
    return [
        Period(USUAL_PRIORITY, int(whole - critical)),
        Period(SYSTEM_CRITICAL_PRIORITY, int(critical)),
    ]


def whole_time(periods: Iterable[Period]) -> int:
    """Return the total seconds of all groups, one after another."""
    return sum(period.seconds for period in periods)


def by_priority(periods: Sequence[Period], pods: Iterable[Pod]) -> list[Group]:
    """Group pods by priority, in the order in which they end, without empty groups.

    A pod belongs to the period with the highest priority that is not above its own, or to the lowest period.
    """
    bounds = [period.priority for period in periods]
    members: list[list[Pod]] = [[] for _ in periods]
    for pod in pods:
        at = bisect_right(bounds, pod.spec.priority or 0) - 1
        members[max(at, 0)].append(pod)
    return [Group(period, found) for period, found in zip(periods, members, strict=True) if found]


def grace_seconds(pod: Pod, period: Period) -> int:
    """Return the pod's grace period, limited to that of its group."""
    own = pod.spec.termination_grace_period_seconds
    return period.seconds if own is None else min(own, period.seconds)
