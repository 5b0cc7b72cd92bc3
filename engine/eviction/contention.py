"""Sets node conditions for lasting waits of pods for CPU and disks.

`cpu.pressure` and `io.pressure` tell in percent how much of the last 10 s some, or all, tasks waited. A
condition is raised after every reading exceeded its limit for a period, and cleared in the same way. No pod
is evicted for it. Pure, except `StallReader`.

Source: the kernel's Documentation/accounting/psi.rst; KEP-4205.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.api.kubengine_config import EvictionSection
from engine.api.node import NodeCondition
from engine.api.timestamps import whole_second
from engine.eviction.stall import is_asked_for, stalled
from engine.host.cgroupfs.mounts import Mounts
from engine.host.cgroupfs.usage import HeldFile

CPU_PRESSURE: Final = "CPUPressure"
IO_PRESSURE: Final = "IOPressure"
FILES: Final = {CPU_PRESSURE: "cpu.pressure", IO_PRESSURE: "io.pressure"}
WHO: Final = {CPU_PRESSURE: b"some", IO_PRESSURE: b"full"}
WAITED_FOR: Final = {CPU_PRESSURE: "the CPU", IO_PRESSURE: "disks"}
MACHINE: Final = Path("/proc/pressure")

log = logging.getLogger("kubengine.eviction")


class Contention(msgspec.Struct):
    """Track one condition: more than `percent` of the time waited, or not, for `period` seconds.

    `holding` is None until it is known; times are seconds of one clock.
    """

    name: str
    percent: int
    period: float
    holding: bool | None = None
    waited: int | None = None
    """Hundredths of a percent at the last reading."""
    _other_since: float | None = None

    def update(self, waited: int | None, now: float) -> bool:
        """Take a reading; return whether the condition changed. A failed reading (None) restarts
        the period.
        """
        self.waited = waited
        if waited is None:
            self._other_since = None
            return False
        over = waited > self.percent * 100
        if self.holding is None:
            self.holding = False
        if over == self.holding:
            self._other_since = None
            return False
        if self._other_since is None:
            self._other_since = now
        if now - self._other_since < self.period:
            return False
        self.holding, self._other_since = over, None
        return True

    def message(self) -> str:
        who = "all tasks" if WHO[self.name] == b"full" else "tasks"
        if self.holding is None:
            return f"it is unknown how long {who} of pods wait for {WAITED_FOR[self.name]}"
        most = "more" if self.holding else "not more"
        return f"{who} of pods wait for {WAITED_FOR[self.name]} {most} than {self.percent}% of the time"

    def condition(self, since: float, now: float) -> NodeCondition:
        """Return the condition for the node's status; times in Unix seconds."""
        status = {True: "True", False: "False", None: "Unknown"}[self.holding]
        reason = {True: "PodsStall", False: "PodsDoNotStall", None: "StallUnknown"}[self.holding]
        return NodeCondition(
            type=self.name,
            status=status,
            last_heartbeat_time=whole_second(now),
            last_transition_time=whole_second(since),
            reason=reason,
            message=self.message(),
        )


def contentions(section: EvictionSection) -> list[Contention]:
    """Return the configured conditions. Raises `InvalidInput`."""
    found = [
        Contention(name, percent, float(section.stall_for))
        for name, field, percent in (
            (CPU_PRESSURE, "cpuStall", section.cpu_stall),
            (IO_PRESSURE, "ioStall", section.io_stall),
        )
        if is_asked_for(percent, f"eviction.{field}")
    ]
    if float(section.stall_for) < 0:
        raise InvalidInput("expected 0s or more", subject="eviction.stallFor")
    return found


def most_waiting(
    stalls: Mapping[str, int], names: Mapping[str, str], shown: int = 3
) -> list[dict[str, object]]:
    """Return the pods that wait most, given hundredths of a percent by uid."""
    ordered = sorted(stalls, key=lambda uid: (-stalls[uid], uid))[:shown]
    return [{"pod": names[uid], "waited": stalls[uid]} for uid in ordered if stalls[uid]]


class StallReader:
    """Read a pressure file. On cgroup v1, which has none per cgroup, the machine's file is used."""

    def __init__(self, names: Sequence[str], mounts: Mounts, pods_cgroup: str) -> None:
        v1 = mounts.version == 1
        below = MACHINE if v1 else mounts.directory("memory", pods_cgroup)
        self._files = {
            name: HeldFile(below / (FILES[name].partition(".")[0] if v1 else FILES[name])) for name in names
        }
        self._reported: set[str] = set()

    def read(self, name: str) -> int | None:
        """Return hundredths of a percent of the last 10 s; None, logged once, if it cannot be read."""
        file = self._files[name]
        try:
            waited = stalled(file.read(), WHO[name], b"avg10")
        except (OSError, ValueError) as error:
            if name not in self._reported:
                self._reported.add(name)
                log.warning("node condition %s cannot be determined: %s", name, error)
            return None
        self._reported.discard(name)
        return waited

    def close(self) -> None:
        for file in self._files.values():
            file.close()
