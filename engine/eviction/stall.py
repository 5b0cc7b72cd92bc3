"""Evicts by stall: how long pods' tasks waited for memory, and which pods cause the waits.

`memory.pressure` tells in percent how much of the last 10, 60 and 300 s some, or all, tasks of a cgroup
waited. The available amount is the share of time in which not all pods waited, in hundredths of a percent; a
soft threshold on it is met only if that lasts. The candidates are the pods that stall most themselves: a pod
that thrashes at its own limit raises the sum, and no other pod's. Pure, except `pod_stalls`.

Source: the kernel's Documentation/accounting/psi.rst; the policy is oomd's: sustained pressure, and the pod
that causes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from engine.api.amounts.eviction_amounts import Amount
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import EvictionSection
from engine.api.pod import Pod
from engine.eviction.measure import PodCgroup
from engine.eviction.signals import MEMORY_STALL
from engine.eviction.thresholds import Threshold
from engine.host.cgroupfs.mounts import Mounts

PRESSURE: Final = "memory.pressure"
WHOLE: Final = 10_000
SHARE_OF_MOST: Final = 0.5


def stall_thresholds(section: EvictionSection, mounts: Mounts) -> list[Threshold]:
    """Return the thresholds, or None if `memory_stall` is 0. Raises `InvalidInput`."""
    percent = section.memory_stall
    if not is_asked_for(percent, "eviction.memoryStall"):
        return []
    if float(section.memory_stall_for) <= 0:
        raise InvalidInput("expected more than 0s", subject="eviction.memoryStallFor")
    if mounts.version == 1:
        raise InvalidInput("needs cgroup v2", subject="eviction.memoryStall")
    left = Amount.parse(f"{100 - percent}%", "eviction.memoryStall")
    return [Threshold(MEMORY_STALL, left, float(section.memory_stall_for))]


def is_asked_for(percent: int, subject: str) -> bool:
    """Tell whether a limit of waiting is set: 0 is off. Raises `InvalidInput` for anything but a
    percentage.
    """
    if not 0 <= percent < 100:
        raise InvalidInput(f"expected 1 to 99, or 0 for off; got {percent}", subject=subject)
    return percent > 0


def stalled(text: bytes, who: bytes, window: bytes) -> int:
    """Return hundredths of a percent of the last `avg10`, `avg60` or `avg300`, in which `some` or `full`
    waited.

    Raises `ValueError` for other texts.
    """
    for line in text.splitlines():
        name, *fields = line.split()
        if name == who:
            given = dict(field.split(b"=") for field in fields)
            if window in given:
                return round(float(given[window]) * 100)
    raise ValueError(f"{PRESSURE} has no {who.decode()} {window.decode()}")


def pod_stalls(
    pods: Sequence[Pod], pod_cgroup: PodCgroup, mounts: Mounts, file: str = PRESSURE
) -> dict[str, int]:
    """Return by uid how much of the last minute some tasks of a pod waited; unreadable pods are left out."""
    found = {}
    for pod in pods:
        cgroup = pod_cgroup(pod.uid)
        try:
            if cgroup is not None:
                text = (mounts.directory("memory", cgroup) / file).read_bytes()
                found[pod.uid] = stalled(text, b"some", b"avg60")
        except (OSError, ValueError):
            continue
    return found


def causes(pods: Sequence[Pod], stalls: Mapping[str, int]) -> list[Pod]:
    """Return the pods that stall at least half as much as the one that stalls most; none if none stalls."""
    most = max(stalls.values(), default=0)
    return [pod for pod in pods if most and stalls.get(pod.uid, 0) >= SHARE_OF_MOST * most]
